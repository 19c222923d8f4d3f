#include "packed.h"

#include <cstring>

namespace rigl {
namespace {

constexpr std::size_t kHeader = 32;
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kShortIndex = 65536;  // so many columns fit into 16 bits

template <class Number>
Number number_at(const unsigned char* bytes, std::size_t offset) {
  Number value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

template <class Index>
std::string read_rows(const unsigned char* counts, const unsigned char* places, SparseMatrix* out) {
  std::size_t next = 0;
  for (std::uint32_t row = 0; row < out->rows; ++row) {
    const std::size_t count = number_at<std::uint32_t>(counts, row * 4u);
    if (count > out->values.size() - next) return "packed weights have more non-zeros in their rows than in all";
    for (std::size_t k = next; k < next + count; ++k) {
      out->places[k] = number_at<Index>(places, k * sizeof(Index));
      if (out->places[k] >= out->columns) return "packed weights name a column that is not there";
      if (k > next && out->places[k] <= out->places[k - 1]) return "packed weights have columns out of order";
    }
    next += count;
    out->starts[row + 1] = next;
  }
  return next == out->values.size() ? "" : "packed weights have fewer non-zeros in their rows than in all";
}

}  // namespace

std::string read_packed(const void* bytes, std::size_t size, SparseMatrix* out) {
  const auto* from = static_cast<const unsigned char*>(bytes);
  if (size < kHeader || std::memcmp(from, "RGLS", 4) != 0) return "not packed weights";
  if (number_at<std::uint32_t>(from, 4) != kVersion) return "packed weights of another version: write the file again";
  out->rows = number_at<std::uint32_t>(from, 8);
  out->columns = number_at<std::uint32_t>(from, 12);
  const auto nonzeros = number_at<std::uint64_t>(from, 16);
  const auto index = number_at<std::uint32_t>(from, 24);
  if (out->rows == 0 || out->columns == 0) return "packed weights without rows or columns";
  if (index != (out->columns <= kShortIndex ? 2u : 4u)) return "packed weights with indices of a wrong size";
  const std::size_t room = size - kHeader;
  if (out->rows > room / 4 || nonzeros > room / (4 + index)) return "packed weights are cut short";
  if (kHeader + std::size_t{out->rows} * 4 + nonzeros * (4 + index) != size) return "packed weights of a wrong length";
  out->starts.assign(std::size_t{out->rows} + 1, 0);
  out->places.resize(nonzeros);
  out->values.resize(nonzeros);
  const unsigned char* values = from + kHeader + std::size_t{out->rows} * 4;
  if (nonzeros > 0) std::memcpy(out->values.data(), values, nonzeros * 4);
  const unsigned char* places = values + nonzeros * 4;
  return index == 2 ? read_rows<std::uint16_t>(from + kHeader, places, out)
                    : read_rows<std::uint32_t>(from + kHeader, places, out);
}

}  // namespace rigl
