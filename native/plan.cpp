#include "plan.h"

#include <algorithm>
#include <numeric>

namespace rigl {
namespace {

// Starting and ending a row costs about as much as so many non-zeros.
constexpr std::size_t kRowCost = 3;
// An index has 16 bits, and a slice needs one more for the zero that fills its holes.
constexpr std::uint32_t kMostColumns = 65535;

std::vector<std::uint32_t> used_sources(const SparseMatrix& matrix, const RowGroup& group, const TileShape& shape) {
  std::vector<std::uint32_t> used;
  const std::uint32_t sources = matrix.columns / shape.columns;
  if (!shape.gather) {
    used.resize(sources);
    std::iota(used.begin(), used.end(), 0u);
    return used;
  }
  const std::size_t first = matrix.starts[group.begin], last = matrix.starts[group.end];
  if (sources / 64 > last - first) {  // far more than non-zeros: not worth a look at each
    for (std::size_t k = first; k < last; ++k) used.push_back(matrix.places[k] / shape.columns);
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    return used;
  }
  std::vector<bool> seen(sources);
  for (std::size_t k = first; k < last; ++k) {
    seen[matrix.places[k] / shape.columns] = true;
  }
  for (std::uint32_t source = 0; source < sources; ++source) {
    if (seen[source]) used.push_back(source);
  }
  return used;
}

// Rows of the same length follow each other: the end of a row is then foreseen by the processor.
Block by_length(const Block& block) {
  std::vector<std::size_t> order(block.rows.size()), starts = {0};
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const RowEntry& each : block.rows) starts.push_back(starts.back() + each.count);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return block.rows[a].count < block.rows[b].count; });
  Block sorted;
  sorted.first_column = block.first_column;
  for (const std::size_t r : order) {
    const auto from = static_cast<std::ptrdiff_t>(starts[r]), to = static_cast<std::ptrdiff_t>(starts[r + 1]);
    sorted.rows.push_back(block.rows[r]);
    sorted.columns.insert(sorted.columns.end(), block.columns.begin() + from, block.columns.begin() + to);
    sorted.values.insert(sorted.values.end(), block.values.begin() + from, block.values.begin() + to);
  }
  return sorted;
}

// Take the non-zeros of the next sources; `cursors` are where the rows stand.
Block cut_block(const SparseMatrix& matrix, const RowGroup& group, const TileShape& shape,
                const std::vector<std::uint32_t>& used, std::size_t from, std::size_t to,
                std::vector<std::size_t>* cursors) {
  Block block;
  const bool all_rows = from == 0 || to == used.size();  // the first block sets the sums, the last one hands them on
  block.first_column = used.empty() ? 0 : used[from];
  for (std::uint32_t row = group.begin; row < group.end; ++row) {
    std::size_t& k = (*cursors)[row - group.begin];
    const std::size_t start = k;
    std::size_t position = from;
    for (; k < matrix.starts[row + 1] && position < to && matrix.places[k] / shape.columns <= used[to - 1]; ++k) {
      position = static_cast<std::size_t>(std::lower_bound(used.begin() + static_cast<std::ptrdiff_t>(position),
                                                           used.begin() + static_cast<std::ptrdiff_t>(to),
                                                           matrix.places[k] / shape.columns) -
                                          used.begin());
      const std::size_t column = matrix.places[k] % shape.columns;
      block.columns.push_back(
          static_cast<std::uint16_t>((position - from) * shape.source_units + column * shape.column_units));
      block.values.push_back(matrix.values[k]);
    }
    if (k > start || all_rows) block.rows.push_back({row - group.begin, static_cast<std::uint32_t>(k - start)});
  }
  return by_length(block);
}

void fill_group(const SparseMatrix& matrix, const TileShape& shape, RowGroup* group) {
  const std::vector<std::uint32_t> used = used_sources(matrix, *group, shape);
  const std::size_t fitting = (kMostColumns - (shape.columns - 1) * shape.column_units) / shape.source_units;
  const std::size_t most = std::min<std::size_t>(std::max(shape.block_sources, 1u), fitting);
  const std::size_t count = std::max<std::size_t>((used.size() + most - 1) / most, 1);
  std::vector<std::size_t> cursors(matrix.starts.begin() + group->begin, matrix.starts.begin() + group->end);
  for (std::size_t b = 0; b < count; ++b) {
    const std::size_t from = used.size() * b / count, to = used.size() * (b + 1) / count;
    Block block = cut_block(matrix, *group, shape, used, from, to, &cursors);
    for (std::size_t c = from; c < to; ++c) block.sources.push_back({used[c] / shape.taps, used[c] % shape.taps});
    group->blocks.push_back(std::move(block));
  }
}

SliceGroup slice_block(const SparseMatrix& matrix, std::uint32_t begin, std::uint32_t end, std::uint32_t first_column,
                       std::uint32_t width, int lanes) {
  SliceGroup group;
  group.first_column = first_column;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;  // of the non-zeros of each row
  for (std::uint32_t row = begin; row < end; ++row) {
    const auto from = matrix.places.begin() + static_cast<std::ptrdiff_t>(matrix.starts[row]);
    const auto to = matrix.places.begin() + static_cast<std::ptrdiff_t>(matrix.starts[row + 1]);
    const auto low = std::lower_bound(from, to, first_column), high = std::lower_bound(low, to, first_column + width);
    ranges.emplace_back(low - matrix.places.begin(), high - matrix.places.begin());
  }
  std::vector<std::uint32_t> order(end - begin);
  std::iota(order.begin(), order.end(), 0u);
  // Rows of about the same length share a slice, so that it has few holes.
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return ranges[a].second - ranges[a].first > ranges[b].second - ranges[b].first;
  });
  const std::size_t step = static_cast<std::size_t>(lanes);
  for (std::size_t s = 0; s < order.size(); s += step) {
    const std::size_t longest = ranges[order[s]].second - ranges[order[s]].first;
    group.lengths.push_back(static_cast<std::uint32_t>(longest));
    for (std::size_t lane = 0; lane < step; ++lane) {
      group.rows.push_back(s + lane < order.size() ? begin + order[s + lane] : matrix.rows);
    }
    for (std::size_t n = 0; n < longest; ++n) {
      for (std::size_t lane = 0; lane < step; ++lane) {
        const bool there = s + lane < order.size() &&
                           ranges[order[s + lane]].first + n < ranges[order[s + lane]].second;
        const std::size_t k = there ? ranges[order[s + lane]].first + n : 0;
        group.columns.push_back(static_cast<std::uint16_t>(there ? matrix.places[k] - first_column : width));
        group.values.push_back(there ? matrix.values[k] : 0.0f);
      }
    }
  }
  return group;
}

}  // namespace

std::vector<std::uint32_t> cut_rows(const SparseMatrix& matrix, std::uint32_t parts) {
  parts = std::max(1u, std::min(parts, matrix.rows));
  const std::size_t work = matrix.values.size() + kRowCost * matrix.rows;
  std::vector<std::uint32_t> cuts = {0};
  for (std::uint32_t part = 1; part < parts; ++part) {
    std::uint32_t row = cuts.back() + 1;
    const std::uint32_t latest = matrix.rows - (parts - part);
    while (row < latest && matrix.starts[row] + kRowCost * row < work * part / parts) ++row;
    cuts.push_back(row);
  }
  cuts.push_back(matrix.rows);
  return cuts;
}

TilePlan plan_tiles(const SparseMatrix& matrix, const TileShape& shape) {
  TilePlan plan;
  const std::vector<std::uint32_t> cuts = cut_rows(matrix, shape.groups);
  for (std::size_t g = 0; g + 1 < cuts.size(); ++g) {
    RowGroup group;
    group.begin = cuts[g];
    group.end = cuts[g + 1];
    fill_group(matrix, shape, &group);
    plan.most_rows = std::max<std::size_t>(plan.most_rows, group.end - group.begin);
    for (const Block& block : group.blocks) plan.most_sources = std::max(plan.most_sources, block.sources.size());
    plan.groups.push_back(std::move(group));
  }
  return plan;
}

SlicePlan plan_slices(const SparseMatrix& matrix, int lanes, std::uint32_t groups) {
  SlicePlan plan;
  plan.rows = matrix.rows;
  plan.block_columns = std::min(matrix.columns, kMostColumns);
  const std::vector<std::uint32_t> cuts = cut_rows(matrix, groups);
  for (std::size_t g = 0; g + 1 < cuts.size(); ++g) {
    std::vector<SliceGroup> parts;
    for (std::uint64_t from = 0; from < matrix.columns; from += kMostColumns) {
      const auto first = static_cast<std::uint32_t>(from);
      const std::uint32_t width = std::min(matrix.columns - first, kMostColumns);
      parts.push_back(slice_block(matrix, cuts[g], cuts[g + 1], first, width, lanes));
      parts.back().first = from == 0;
      parts.back().last = from + width == matrix.columns;
    }
    plan.groups.push_back(std::move(parts));
  }
  return plan;
}

}  // namespace rigl
