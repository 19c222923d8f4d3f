#include "train_pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "counting_sort.h"

namespace rigl {
namespace {

// Tiles are about this wide, in bytes: the sizes of blocks follow from it.
constexpr double kTileBytes = 256;
constexpr double kMinBlockBytes = 32 * 1024, kMaxBlockBytes = 256 * 1024;
constexpr double kConnectionsPerRow = 12;  // of a block: fewer are dominated by loading and storing the sums
constexpr std::uint32_t kGroupRows = 128 * 1024 / 256;

std::uint32_t block_sources(const Pass& pass, std::size_t links) {
  const double per_row = static_cast<double>(links) / std::max(pass.rows, 1u) / std::max(pass.sources, 1u);
  const double preferred = kConnectionsPerRow / std::max(per_row, 1e-9);
  return static_cast<std::uint32_t>(std::clamp(preferred, kMinBlockBytes / kTileBytes, kMaxBlockBytes / kTileBytes));
}

// All rows are in the first and the last block of a group: those begin and end their sums.
void add_block(PassGroup* group, std::uint32_t first_source, bool every_row, const std::vector<std::uint32_t>& counts,
               std::size_t* value) {
  PassBlock block;
  block.first_source = first_source;
  block.first_value = *value;
  for (std::uint32_t row = 0; row < counts.size(); ++row) {
    if (every_row || counts[row] > 0) block.rows.push_back({row, counts[row]});
    *value += counts[row];
  }
  group->blocks.push_back(std::move(block));
}

}  // namespace

Pass plan_pass(std::uint32_t rows, std::uint32_t sources, const std::vector<Link>& links) {
  Pass pass;
  pass.rows = rows;
  pass.sources = sources;
  const std::uint32_t step = block_sources(pass, links.size());
  const std::uint32_t steps = (std::max(sources, 1u) + step - 1) / step;
  const std::uint32_t groups = (std::max(rows, 1u) + kGroupRows - 1) / kGroupRows;
  std::vector<std::uint32_t> every(links.size());
  std::iota(every.begin(), every.end(), 0u);
  every = sorted_by(every, rows, [&](std::uint32_t i) { return links[i].row; });
  pass.order = sorted_by(every, static_cast<std::size_t>(groups) * steps, [&](std::uint32_t i) {
    return static_cast<std::size_t>(links[i].row / kGroupRows) * steps + links[i].source / step;
  });
  pass.col_idx.reserve(links.size());
  std::size_t value = 0;
  for (std::uint32_t begin = 0; begin < rows; begin += kGroupRows) {
    PassGroup group;
    group.begin = begin;
    group.end = std::min(rows, begin + kGroupRows);
    std::size_t at = value;  // runs ahead of the blocks
    for (std::uint32_t first = 0; first < std::max(sources, 1u); first += step) {
      std::vector<std::uint32_t> counts(group.end - group.begin, 0);
      for (; at < links.size(); ++at) {
        const Link& link = links[pass.order[at]];
        if (link.row >= group.end || link.source - first >= step) break;
        ++counts[link.row - group.begin];
        pass.col_idx.push_back(static_cast<std::uint16_t>(link.source - first));
      }
      const bool last = sources - first <= step || first + step < first;
      add_block(&group, first, first == 0 || last, counts, &value);
      if (last) break;
    }
    pass.groups.push_back(std::move(group));
  }
  return pass;
}

}  // namespace rigl
