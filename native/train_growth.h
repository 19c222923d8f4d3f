// Which connections grow: the largest of a dense gradient that is computed one block at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rigl {

// A block of a gradient, its flat position in the weight, and the ascending positions that are not to grow.
struct GrowthBlock {
  const float* gradient;
  std::size_t count;
  std::int64_t start;
  const std::int64_t* kept;
  std::size_t kept_count;
};

// Magnitudes above `lowest` and their positions; there is room for as many as the block has.
struct GrowthCandidates {
  float lowest;
  std::int64_t* positions;
  float* magnitudes;
};

struct GrowthResult {
  std::size_t count;
  bool finite, nonzero;  // of the whole block, whatever is kept
};

GrowthResult find_candidates(const GrowthBlock& block, const GrowthCandidates& candidates);

// A magnitude that at least `wanted` connections of a block reach that are free to grow; -1 if none is known.
float growth_bound(const GrowthBlock& block, std::size_t wanted);

// For each ascending position of `now`, its index in `before`, or -1.
void match_positions(const std::int64_t* before, std::size_t before_count, const std::int64_t* now,
                     std::size_t now_count, std::int64_t* index);

}  // namespace rigl
