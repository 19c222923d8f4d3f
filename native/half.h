// Finite floats of 16 bits, as IEEE 754 has them.
#pragma once

#include <cstdint>
#include <cstring>

namespace rigl {

inline bool is_finite_half(std::uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

// The number that finite bits stand for.
inline float half_value(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu;
  // Below the smallest normal number the bits count steps of 2^-24.
  const float small = static_cast<float>(magnitude) * 0x1p-24f;
  const std::uint32_t large = (magnitude << 13) + (112u << 23);
  float value;
  std::memcpy(&value, &large, sizeof value);
  value = magnitude < 0x400 ? small : value;
  return bits & 0x8000 ? -value : value;
}

// The bits of a number that has them exactly.
inline std::uint16_t half_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 113u << 23) return static_cast<std::uint16_t>(sign | (magnitude - (112u << 23)) >> 13);
  const float small = value < 0.0f ? -value : value;
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(small * 0x1p24f));
}

}  // namespace rigl
