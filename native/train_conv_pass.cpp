#include "train_conv_pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "counting_sort.h"

namespace rigl {
namespace {

constexpr double kTileBytes = 32 * 1024;     // of the sources of a block, for one tile: they stay in the L1 cache
constexpr double kConnectionsPerRow = 12;    // of a block: fewer are dominated by loading and storing the sums
constexpr double kSumBytes = 64 * 1024;      // of the rows of a block
constexpr double kSegmentBytes = 64 * 1024;  // of the sources of a block, for one segment of a gradient
constexpr double kTilePixels = 8, kSegmentPixels = 16;

double channel_bytes(const WindowAxes& axes, double pixels, int lanes) {
  const WindowAxis &v = axes.vertical, &h = axes.horizontal;
  const double rows = static_cast<double>(v.phases * (1 + v.reach));
  return rows * static_cast<double>(h.phases) * (pixels + static_cast<double>(h.reach)) * lanes * sizeof(float);
}

// All rows are in the first and the last block: those begin and end their sums.
void add_rows(LinkBlock* block, const std::vector<std::uint32_t>& counts) {
  for (std::uint32_t row = 0; row < counts.size(); ++row) {
    if (block->first || block->last || counts[row] > 0) block->rows.push_back({row, counts[row]});
  }
}

std::uint32_t pieces(std::uint32_t count, std::uint32_t size) { return (std::max(count, 1u) + size - 1) / size; }

}  // namespace

BlockSizes product_blocks(const WindowAxes& axes, std::uint32_t rows, std::uint32_t sources, std::size_t links,
                          int lanes) {
  const double per_row = static_cast<double>(links) / std::max(rows, 1u) / std::max(sources, 1u);
  const double cached = kTileBytes / channel_bytes(axes, kTilePixels, lanes);
  const double worth = std::min(kConnectionsPerRow / std::max(per_row, 1e-9), 4 * cached);
  const double group = kSumBytes / (kTilePixels * lanes * sizeof(float));
  // Equal blocks rather than a small last one.
  const double count = std::max(1.0, static_cast<double>(sources) / std::max({cached, worth, 1.0}) - 0.25);
  const std::uint32_t blocks = std::min(std::max(sources, 1u), static_cast<std::uint32_t>(count + 0.999));
  return {static_cast<std::uint32_t>(std::max(1.0, group)), pieces(sources, std::max(blocks, 1u))};
}

BlockSizes gradient_blocks(const WindowAxes& axes, std::uint32_t rows, int lanes) {
  const double cached = kSegmentBytes / channel_bytes(axes, kSegmentPixels, lanes);
  return {std::max(rows, 1u), static_cast<std::uint32_t>(std::max(1.0, cached))};
}

ConvPass plan_conv_pass(std::uint32_t rows, std::uint32_t sources, const WindowAxes& axes,
                        const std::vector<ConvLink>& links, const BlockSizes& sizes) {
  ConvPass pass;
  pass.rows = rows;
  pass.sources = sources;
  pass.vertical = axes.vertical;
  pass.horizontal = axes.horizontal;
  pass.group_rows = sizes.rows;
  const std::uint32_t groups = pieces(rows, sizes.rows), steps = pieces(sources, sizes.sources);
  std::vector<std::uint32_t> every(links.size());
  std::iota(every.begin(), every.end(), 0u);
  every = sorted_by(every, rows, [&](std::uint32_t i) { return links[i].row; });
  pass.order = sorted_by(every, static_cast<std::size_t>(groups) * steps, [&](std::uint32_t i) {
    return static_cast<std::size_t>(links[i].row / sizes.rows) * steps + links[i].source / sizes.sources;
  });
  pass.links.reserve(links.size());
  for (const std::uint32_t i : pass.order) pass.links.push_back(links[i]);
  std::size_t value = 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    const std::uint32_t first_row = g * sizes.rows, end = std::min(rows, first_row + sizes.rows);
    for (std::uint32_t s = 0; s < steps; ++s) {
      LinkBlock block;
      block.first_row = first_row;
      block.first_source = s * sizes.sources;
      block.sources = std::min(sizes.sources, sources - block.first_source);
      block.first_value = value;
      block.first = s == 0;
      block.last = s + 1 == steps;
      std::vector<std::uint32_t> counts(end - first_row, 0);
      for (; value < links.size() && pass.links[value].row < end &&
             pass.links[value].source < block.first_source + block.sources;
           ++value) {
        ++counts[pass.links[value].row - first_row];
      }
      add_rows(&block, counts);
      pass.blocks.push_back(std::move(block));
    }
  }
  return pass;
}

void SlabOffsets::place(const ConvPass& pass, const SlabShape& wanted) {
  if (shape == wanted) return;
  const Slab slab = {wanted, pass.vertical, pass.horizontal};
  offsets.resize(pass.links.size());
  for (const LinkBlock& block : pass.blocks) {
    std::size_t end = block.first_value;
    for (const RowEntry& entry : block.rows) end += entry.count;
    for (std::size_t i = block.first_value; i < end; ++i) {
      const ConvLink& link = pass.links[i];
      const std::int64_t at = static_cast<std::int64_t>(link.source - block.first_source) * slab.channel();
      offsets[i] = static_cast<std::uint32_t>(at + slab.offset(link.place));
    }
  }
  shape = wanted;
}

}  // namespace rigl
