// How a convolution is computed for one size of images: its geometry, tiles, and how their activations are packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "conv.h"
#include "geometry.h"
#include "kernels.h"
#include "packed.h"
#include "plan.h"

namespace rigl {

// Runs start whole units apart, and column indices count units: in floats.
constexpr std::size_t kUnit = 8;

// How the activations of one tile of pixels are packed.
struct PackPlan {
  std::vector<std::ptrdiff_t> offsets;
  std::vector<std::int32_t> masks;
  std::vector<std::uint8_t> needed;
};

// Pack the output pixels `first`..`first + width`, with masks `pitch` apart.
PackPlan plan_packing(const Geometry& geometry, const std::vector<Tap>& taps, std::size_t first, std::size_t width,
                      std::size_t pitch);

struct ConvPlan {
  Geometry geometry;
  int threads;
  std::uint32_t groups;
  std::size_t width, tile_count;
  TilePlan tiles;
  std::vector<Tap> sources;        // what is packed per channel: taps, or runs of taps
  std::size_t overhang;            // pixels a run reads past its tile
  std::size_t run_pitch;           // floats from run to run
  std::vector<PackPlan> packings;  // per tile, or empty if too large to keep
};

struct ConvRequest {
  const ConvShape& shape;
  const std::vector<std::uint32_t>& taps;  // in use
  std::size_t channels, batch;
  std::int64_t height, width;
  int threads;
};

// The minimum number of row groups for this many tiles.
std::uint32_t conv_groups(std::size_t tile_count, const ConvRequest& request);

// The columns of the matrix are (channel, index into the taps of the request).
ConvPlan plan_conv(const SparseMatrix& matrix, const ConvRequest& request, const KernelTable& kernels);

inline std::size_t round_up(std::size_t count, int lanes) {
  const std::size_t step = static_cast<std::size_t>(lanes);
  return (count + step - 1) / step * step;
}

}  // namespace rigl
