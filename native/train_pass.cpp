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
constexpr double kGroupBytes = 128 * 1024;
constexpr std::int64_t kPlannedPixels = 2;
constexpr std::size_t kMaxPlaces = 65536;  // of a block: indices have 16 bits

std::uint32_t block_sources(const Pass& pass, std::size_t links) {
  const double per_row = static_cast<double>(links) / std::max(pass.rows, 1u) / std::max(pass.sources, 1u);
  const double bytes = kTileBytes * static_cast<double>(pass.places(kPlannedPixels)) / kPlannedPixels;
  const double preferred = kConnectionsPerRow / std::max(per_row, 1e-9);
  const double sources = std::clamp(preferred, kMinBlockBytes / bytes, kMaxBlockBytes / bytes);
  const std::size_t most = kMaxPlaces / std::max<std::size_t>(pass.places(kMaxPixels), 1);
  return static_cast<std::uint32_t>(
      std::clamp<double>(sources, 1.0, static_cast<double>(std::max<std::size_t>(most, 1))));
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

void Pass::place(std::int64_t tile, Placement* placement) const {
  if (placement->pixels == tile) return;
  std::vector<std::uint16_t>& col_idx = placement->col_idx;
  const std::size_t width = static_cast<std::size_t>(tile + window.columns - 1);
  const std::size_t phases = window.column_offsets.size();
  const std::size_t channel = places(tile);
  col_idx.resize(links.size());
  for (const PassGroup& group : groups) {
    for (const PassBlock& block : group.blocks) {
      std::size_t end = block.first_value;
      for (const RowEntry& entry : block.rows) end += entry.count;
      for (std::size_t i = block.first_value; i < end; ++i) {
        const Link& link = links[i];
        const std::size_t at = (link.source - block.first_source) * channel +
                               (link.window_row * phases + link.phase) * width + link.window_column;
        col_idx[i] = static_cast<std::uint16_t>(at);
      }
    }
  }
  placement->pixels = tile;
}

Pass plan_pass(std::uint32_t rows, std::uint32_t sources, Window window, const std::vector<Link>& links) {
  Pass pass;
  pass.rows = rows;
  pass.sources = sources;
  pass.window = std::move(window);
  const std::uint32_t step = block_sources(pass, links.size());
  const std::uint32_t group_rows = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(kGroupBytes / kTileBytes));
  const std::uint32_t steps = (std::max(sources, 1u) + step - 1) / step;
  const std::uint32_t groups = (std::max(rows, 1u) + group_rows - 1) / group_rows;
  std::vector<std::uint32_t> every(links.size());
  std::iota(every.begin(), every.end(), 0u);
  every = sorted_by(every, rows, [&](std::uint32_t i) { return links[i].row; });
  pass.order = sorted_by(every, static_cast<std::size_t>(groups) * steps, [&](std::uint32_t i) {
    return static_cast<std::size_t>(links[i].row / group_rows) * steps + links[i].source / step;
  });
  pass.links.reserve(links.size());
  for (const std::uint32_t i : pass.order) pass.links.push_back(links[i]);
  std::size_t value = 0;
  for (std::uint32_t begin = 0; begin < rows; begin += group_rows) {
    PassGroup group;
    group.begin = begin;
    group.end = std::min(rows, begin + group_rows);
    std::size_t at = value;  // runs ahead of the blocks
    for (std::uint32_t first = 0; first < std::max(sources, 1u); first += step) {
      std::vector<std::uint32_t> counts(group.end - group.begin, 0);
      for (; at < pass.links.size() && pass.links[at].row < group.end && pass.links[at].source - first < step; ++at) {
        ++counts[pass.links[at].row - group.begin];
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
