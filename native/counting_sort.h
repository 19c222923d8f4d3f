// A stable sort by small integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rigl {

// Sort indices by a key below `keys`; equal ones keep their order.
template <class Key>
std::vector<std::uint32_t> sorted_by(const std::vector<std::uint32_t>& indices, std::size_t keys, const Key& key) {
  std::vector<std::size_t> next(keys + 1, 0);
  for (const std::uint32_t i : indices) ++next[key(i) + 1];
  for (std::size_t k = 0; k < keys; ++k) next[k + 1] += next[k];
  std::vector<std::uint32_t> sorted(indices.size());
  for (const std::uint32_t i : indices) sorted[next[key(i)]++] = i;
  return sorted;
}

}  // namespace rigl
