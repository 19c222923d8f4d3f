#include "train_growth.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

namespace rigl {
namespace {

constexpr std::size_t kChunk = 256;
constexpr std::size_t kSmallChunk = 32;          // whose largest magnitudes bound the best of all
constexpr std::uint32_t kInfinity = 0x7f800000;  // as bits; those of NaN are greater

// Magnitudes as bits, which compare as the numbers do and let the compiler use vectors.
std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffff;
}

std::uint32_t largest(const float* values, std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) found = std::max(found, bits_of(values[i]));
  return found;
}

}  // namespace

GrowthResult find_candidates(const GrowthBlock& block, const GrowthCandidates& candidates) {
  const bool all = candidates.lowest < 0;
  const std::uint32_t limit = bits_of(candidates.lowest);
  std::uint32_t most = 0;
  std::size_t found = 0;
  const std::int64_t* kept = std::lower_bound(block.kept, block.kept + block.kept_count, block.start);
  const std::int64_t* const kept_end = block.kept + block.kept_count;
  for (std::size_t begin = 0; begin < block.count; begin += kChunk) {
    const std::size_t end = std::min(block.count, begin + kChunk);
    const std::uint32_t here = largest(block.gradient + begin, end - begin);
    most = std::max(most, here);
    if (!all && here <= limit) continue;
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t bits = bits_of(block.gradient[i]);
      if (!all && bits <= limit) continue;
      const std::int64_t position = block.start + static_cast<std::int64_t>(i);
      while (kept != kept_end && *kept < position) ++kept;
      if (kept != kept_end && *kept == position) continue;
      candidates.positions[found] = position;
      std::memcpy(candidates.magnitudes + found, &bits, sizeof bits);
      ++found;
    }
  }
  return {found, most < kInfinity, most > 0};
}

float growth_bound(const GrowthBlock& block, std::size_t wanted) {
  const std::size_t chunks = (block.count + kSmallChunk - 1) / kSmallChunk;
  if (wanted == 0 || chunks < wanted) return -1;
  std::vector<std::uint32_t> most(chunks);
  const std::int64_t* kept = std::lower_bound(block.kept, block.kept + block.kept_count, block.start);
  const std::int64_t* const kept_end = block.kept + block.kept_count;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t begin = chunk * kSmallChunk, end = std::min(block.count, begin + kSmallChunk);
    const std::int64_t last = block.start + static_cast<std::int64_t>(end);
    if (kept == kept_end || *kept >= last) {
      most[chunk] = largest(block.gradient + begin, end - begin);
      continue;
    }
    std::uint32_t found = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (kept != kept_end && *kept == block.start + static_cast<std::int64_t>(i)) {
        ++kept;
      } else {
        found = std::max(found, bits_of(block.gradient[i]));
      }
    }
    most[chunk] = found;
  }
  std::nth_element(most.begin(), most.begin() + static_cast<std::ptrdiff_t>(wanted) - 1, most.end(),
                   std::greater<std::uint32_t>());
  if (most[wanted - 1] == 0 || most[wanted - 1] >= kInfinity) return -1;
  const std::uint32_t below = most[wanted - 1] - 1;  // candidates exceed the bound
  float bound;
  std::memcpy(&bound, &below, sizeof bound);
  return bound;
}

void match_positions(const std::int64_t* before, std::size_t before_count, const std::int64_t* now,
                     std::size_t now_count, std::int64_t* index) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < now_count; ++i) {
    while (at < before_count && before[at] < now[i]) ++at;
    index[i] = at < before_count && before[at] == now[i] ? static_cast<std::int64_t>(at) : -1;
  }
}

}  // namespace rigl
