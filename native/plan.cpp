#include "plan.h"

#include <algorithm>
#include <numeric>

#include "cpu.h"

namespace rigl {
namespace {

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
  sorted.rows.reserve(block.rows.size());
  sorted.col_idx.reserve(block.col_idx.size());
  sorted.values.reserve(block.values.size());
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
    block.sources.reserve(to - from);
    for (std::size_t c = from; c < to; ++c) block.sources.push_back({used[c] / shape.taps, used[c] % shape.taps});
    group->blocks.push_back(std::move(block));
  }
}

}  // namespace

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

}  // namespace rigl
