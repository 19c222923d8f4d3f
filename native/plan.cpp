#include "plan.h"

#include <algorithm>
#include <numeric>

#include "cpu.h"

namespace rigl {
namespace {

// An index has 16 bits, and slices need one value for the zero that pads them.
constexpr std::uint32_t kMaxColumns = 65535;

// Split the rows into parts of about the same work, none of them empty. Returns the bounds.
std::vector<std::uint32_t> partition_rows(const SparseMatrix& matrix, std::uint32_t parts) {
  parts = std::max(1u, std::min(parts, matrix.rows));
  // The cost of a row besides its non-zeros, in non-zeros.
  const std::size_t row_cost = static_cast<std::size_t>(costs_of(kernels()).plan.row);
  const std::size_t work = matrix.values.size() + row_cost * matrix.rows;
  std::vector<std::uint32_t> bounds = {0};
  for (std::uint32_t part = 1; part < parts; ++part) {
    std::uint32_t row = bounds.back() + 1;
    const std::uint32_t latest = matrix.rows - (parts - part);
    while (row < latest && matrix.row_ptr[row] + row_cost * row < work * part / parts) ++row;
    bounds.push_back(row);
  }
  bounds.push_back(matrix.rows);
  return bounds;
}

std::vector<std::uint32_t> used_sources(const SparseMatrix& matrix, const RowGroup& group, const TileShape& shape) {
  std::vector<std::uint32_t> used;
  const std::uint32_t sources = matrix.columns / shape.columns;
  if (!shape.gather) {
    used.resize(sources);
    std::iota(used.begin(), used.end(), 0u);
    return used;
  }
  const std::size_t first = matrix.row_ptr[group.begin], last = matrix.row_ptr[group.end];
  if (sources / 64 > last - first) {  // far more sources than non-zeros: sort instead of marking
    for (std::size_t k = first; k < last; ++k) used.push_back(matrix.col_idx[k] / shape.columns);
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    return used;
  }
  std::vector<bool> seen(sources);
  for (std::size_t k = first; k < last; ++k) {
    seen[matrix.col_idx[k] / shape.columns] = true;
  }
  for (std::uint32_t source = 0; source < sources; ++source) {
    if (seen[source]) used.push_back(source);
  }
  return used;
}

// Order rows by length: the branch at the end of a row is then predicted.
Block sort_rows(const Block& block) {
  std::vector<std::size_t> order(block.rows.size()), row_ptr = {0};
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const RowEntry& entry : block.rows) row_ptr.push_back(row_ptr.back() + entry.count);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return block.rows[a].count < block.rows[b].count; });
  Block sorted;
  sorted.first_column = block.first_column;
  for (const std::size_t r : order) {
    const auto from = static_cast<std::ptrdiff_t>(row_ptr[r]), to = static_cast<std::ptrdiff_t>(row_ptr[r + 1]);
    sorted.rows.push_back(block.rows[r]);
    sorted.col_idx.insert(sorted.col_idx.end(), block.col_idx.begin() + from, block.col_idx.begin() + to);
    sorted.values.insert(sorted.values.end(), block.values.begin() + from, block.values.begin() + to);
  }
  return sorted;
}

// Make a block of the sources `from`..`to`; `cursors` are the next non-zero of each row.
Block make_block(const SparseMatrix& matrix, const RowGroup& group, const TileShape& shape,
                 const std::vector<std::uint32_t>& used, std::size_t from, std::size_t to,
                 std::vector<std::size_t>* cursors) {
  Block block;
  const bool all_rows =
      from == 0 || to == used.size();  // the first block initializes the accumulators, the last stores the output
  block.first_column = used.empty() ? 0 : used[from];
  for (std::uint32_t row = group.begin; row < group.end; ++row) {
    std::size_t& k = (*cursors)[row - group.begin];
    const std::size_t start = k;
    std::size_t position = from;
    for (; k < matrix.row_ptr[row + 1] && position < to && matrix.col_idx[k] / shape.columns <= used[to - 1]; ++k) {
      position = static_cast<std::size_t>(std::lower_bound(used.begin() + static_cast<std::ptrdiff_t>(position),
                                                           used.begin() + static_cast<std::ptrdiff_t>(to),
                                                           matrix.col_idx[k] / shape.columns) -
                                          used.begin());
      const std::size_t column = matrix.col_idx[k] % shape.columns;
      block.col_idx.push_back(
          static_cast<std::uint16_t>((position - from) * shape.source_units + column * shape.column_units));
      block.values.push_back(matrix.values[k]);
    }
    if (k > start || all_rows) block.rows.push_back({row - group.begin, static_cast<std::uint32_t>(k - start)});
  }
  return sort_rows(block);
}

void make_blocks(const SparseMatrix& matrix, const TileShape& shape, RowGroup* group) {
  const std::vector<std::uint32_t> used = used_sources(matrix, *group, shape);
  const std::size_t addressable = (kMaxColumns - (shape.columns - 1) * shape.column_units) / shape.source_units;
  const std::size_t block_sources = std::min<std::size_t>(std::max(shape.block_sources, 1u), addressable);
  const std::size_t count = std::max<std::size_t>((used.size() + block_sources - 1) / block_sources, 1);
  std::vector<std::size_t> cursors(matrix.row_ptr.begin() + group->begin, matrix.row_ptr.begin() + group->end);
  for (std::size_t b = 0; b < count; ++b) {
    const std::size_t from = used.size() * b / count, to = used.size() * (b + 1) / count;
    Block block = make_block(matrix, *group, shape, used, from, to, &cursors);
    for (std::size_t c = from; c < to; ++c) block.sources.push_back({used[c] / shape.taps, used[c] % shape.taps});
    group->blocks.push_back(std::move(block));
  }
}

SliceGroup make_slices(const SparseMatrix& matrix, std::uint32_t begin, std::uint32_t end, std::uint32_t first_column,
                       std::uint32_t width, int lanes) {
  SliceGroup group;
  group.begin = begin;
  group.end = end;
  group.first_column = first_column;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;  // non-zeros of each row in these columns
  for (std::uint32_t row = begin; row < end; ++row) {
    const auto from = matrix.col_idx.begin() + static_cast<std::ptrdiff_t>(matrix.row_ptr[row]);
    const auto to = matrix.col_idx.begin() + static_cast<std::ptrdiff_t>(matrix.row_ptr[row + 1]);
    const auto low = std::lower_bound(from, to, first_column), high = std::lower_bound(low, to, first_column + width);
    ranges.emplace_back(low - matrix.col_idx.begin(), high - matrix.col_idx.begin());
  }
  std::vector<std::uint32_t> order(end - begin);
  std::iota(order.begin(), order.end(), 0u);
  // Rows of similar length share a slice, which then needs little padding.
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
        const bool present =
            s + lane < order.size() && ranges[order[s + lane]].first + n < ranges[order[s + lane]].second;
        const std::size_t k = present ? ranges[order[s + lane]].first + n : 0;
        group.col_idx.push_back(static_cast<std::uint16_t>(present ? matrix.col_idx[k] - first_column : width));
        group.values.push_back(present ? matrix.values[k] : 0.0f);
      }
    }
  }
  return group;
}

// The non-zeros of a row that are not stored yet.
struct RowCursor {
  std::uint32_t row;
  std::size_t next, end;

  // How many of them are in the columns before `limit`.
  std::size_t count_before(const SparseMatrix& matrix, std::uint32_t limit) const {
    std::size_t k = next;
    while (k < end && matrix.col_idx[k] < limit) ++k;
    return k - next;
  }
};

// Store the non-zeros of a slice of rows, the windows with few of them first: the end of a window is then predicted.
void add_slice(const SparseMatrix& matrix, const std::vector<RowCursor>& rows, std::size_t lanes, WindowGroup* group) {
  struct Part {
    WindowEntry entry;
    std::vector<std::size_t> first, count;  // of each row
  };
  std::vector<Part> parts;
  std::vector<RowCursor> cursors = rows;
  for (std::uint64_t from = 0; from < matrix.columns; from += kWindowColumns) {
    Part part{{static_cast<std::uint16_t>(from / kWindowColumns), 0}, {}, {}};
    const auto limit = static_cast<std::uint32_t>(std::min<std::uint64_t>(from + kWindowColumns, matrix.columns));
    for (RowCursor& cursor : cursors) {
      const std::size_t count = cursor.count_before(matrix, limit);
      part.first.push_back(cursor.next);
      part.count.push_back(count);
      part.entry.count = std::max(part.entry.count, static_cast<std::uint16_t>(count));
      cursor.next += count;
    }
    if (part.entry.count > 0) parts.push_back(std::move(part));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.entry.count < b.entry.count; });
  group->entry_counts.push_back(static_cast<std::uint32_t>(parts.size()));
  for (const Part& part : parts) {
    group->entries.push_back(part.entry);
    for (std::size_t n = 0; n < part.entry.count; ++n) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const bool present = lane < rows.size() && n < part.count[lane];
        const std::size_t k = present ? part.first[lane] + n : 0;
        const std::uint32_t position = present ? matrix.col_idx[k] % kWindowColumns : kWindowColumns;
        group->positions.push_back(static_cast<std::uint8_t>(position));
        group->values.push_back(present ? matrix.values[k] : 0.0f);
      }
    }
  }
}

WindowGroup make_windows(const SparseMatrix& matrix, std::uint32_t begin, std::uint32_t end, std::size_t lanes) {
  WindowGroup group;
  group.begin = begin;
  group.end = end;
  std::vector<RowCursor> rows;
  for (std::uint32_t row = begin; row < end; ++row) {
    rows.push_back({row, matrix.row_ptr[row], matrix.row_ptr[row + 1]});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const RowCursor& a, const RowCursor& b) { return a.end - a.next > b.end - b.next; });
  for (std::size_t s = 0; s < rows.size(); s += lanes) {
    const std::size_t last = std::min(s + lanes, rows.size());
    const std::vector<RowCursor> slice(rows.begin() + static_cast<std::ptrdiff_t>(s),
                                       rows.begin() + static_cast<std::ptrdiff_t>(last));
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      group.rows.push_back(lane < slice.size() ? slice[lane].row : matrix.rows);
    }
    add_slice(matrix, slice, lanes, &group);
  }
  return group;
}

}  // namespace

TilePlan plan_tiles(const SparseMatrix& matrix, const TileShape& shape) {
  TilePlan plan;
  const std::vector<std::uint32_t> bounds = partition_rows(matrix, shape.groups);
  for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
    RowGroup group;
    group.begin = bounds[g];
    group.end = bounds[g + 1];
    make_blocks(matrix, shape, &group);
    for (const Block& block : group.blocks) plan.max_sources = std::max(plan.max_sources, block.sources.size());
    plan.groups.push_back(std::move(group));
  }
  return plan;
}

SlicePlan plan_slices(const SparseMatrix& matrix, int lanes, std::uint32_t groups) {
  SlicePlan plan;
  plan.rows = matrix.rows;
  plan.block_columns = std::min(matrix.columns, kMaxColumns);
  const std::vector<std::uint32_t> bounds = partition_rows(matrix, groups);
  for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
    std::vector<SliceGroup> blocks;
    for (std::uint64_t from = 0; from < matrix.columns; from += kMaxColumns) {
      const auto first = static_cast<std::uint32_t>(from);
      const std::uint32_t width = std::min(matrix.columns - first, kMaxColumns);
      blocks.push_back(make_slices(matrix, bounds[g], bounds[g + 1], first, width, lanes));
      blocks.back().first = from == 0;
      blocks.back().last = from + width == matrix.columns;
    }
    plan.groups.push_back(std::move(blocks));
  }
  return plan;
}

bool windows_pay_off(const SparseMatrix& matrix, std::uint32_t groups) {
  // Beyond the caches of a core, padding costs more than looking up saves.
  constexpr std::size_t kMaxNonzeros = 1 << 20;
  const bool countable = matrix.columns / kWindowColumns < 65535;
  return countable && matrix.values.size() / std::max(groups, 1u) <= kMaxNonzeros;
}

WindowPlan plan_windows(const SparseMatrix& matrix, int lanes, std::uint32_t groups) {
  WindowPlan plan;
  plan.rows = matrix.rows;
  plan.windows = (matrix.columns + kWindowColumns - 1) / kWindowColumns;
  const std::vector<std::uint32_t> bounds = partition_rows(matrix, groups);
  for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
    plan.groups.push_back(make_windows(matrix, bounds[g], bounds[g + 1], static_cast<std::size_t>(lanes)));
  }
  return plan;
}

}  // namespace rigl
