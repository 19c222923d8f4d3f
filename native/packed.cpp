#include "packed.h"

#include <cstring>

namespace rigl {
namespace {

constexpr std::size_t kHeader = 32;
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kShortIndexColumns = 65536;  // up to this many columns an index has 16 bits

template <class Number>
Number number_at(const unsigned char* bytes, std::size_t offset) {
  Number value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

template <class Index>
std::string read_rows(const unsigned char* counts, const unsigned char* indices, SparseMatrix* out) {
  std::size_t next = 0;
  for (std::uint32_t row = 0; row < out->rows; ++row) {
    const std::size_t count = number_at<std::uint32_t>(counts, row * 4u);
    if (count > out->values.size() - next) return "packed weights: the rows have more non-zeros than the header";
    for (std::size_t k = next; k < next + count; ++k) {
      out->col_idx[k] = number_at<Index>(indices, k * sizeof(Index));
      if (out->col_idx[k] >= out->columns) return "packed weights: column index out of range";
      if (k > next && out->col_idx[k] <= out->col_idx[k - 1]) return "packed weights: column indices do not increase";
    }
    next += count;
    out->row_ptr[row + 1] = next;
  }
  return next == out->values.size() ? "" : "packed weights: the rows have fewer non-zeros than the header";
}

}  // namespace

std::string read_packed(const void* bytes, std::size_t size, SparseMatrix* out) {
  const auto* from = static_cast<const unsigned char*>(bytes);
  if (size < kHeader || std::memcmp(from, "RGLS", 4) != 0)
    return "not packed weights: expected bytes that start with RGLS";
  if (number_at<std::uint32_t>(from, 4) != kVersion)
    return "packed weights: unsupported version, export the file again";
  out->rows = number_at<std::uint32_t>(from, 8);
  out->columns = number_at<std::uint32_t>(from, 12);
  const auto nonzeros = number_at<std::uint64_t>(from, 16);
  const auto index_bytes = number_at<std::uint32_t>(from, 24);
  if (out->rows == 0 || out->columns == 0) return "packed weights: no rows or no columns";
  if (index_bytes != (out->columns <= kShortIndexColumns ? 2u : 4u)) return "packed weights: wrong size of indices";
  const std::size_t room = size - kHeader;
  if (out->rows > room / 4 || nonzeros > room / (4 + index_bytes)) return "packed weights: truncated";
  if (kHeader + std::size_t{out->rows} * 4 + nonzeros * (4 + index_bytes) != size)
    return "packed weights: wrong length";
  out->row_ptr.assign(std::size_t{out->rows} + 1, 0);
  out->col_idx.resize(nonzeros);
  out->values.resize(nonzeros);
  const unsigned char* values = from + kHeader + std::size_t{out->rows} * 4;
  if (nonzeros > 0) std::memcpy(out->values.data(), values, nonzeros * 4);
  const unsigned char* indices = values + nonzeros * 4;
  return index_bytes == 2 ? read_rows<std::uint16_t>(from + kHeader, indices, out)
                          : read_rows<std::uint32_t>(from + kHeader, indices, out);
}

SparseMatrix rows_of(const SparseMatrix& matrix, std::size_t begin, std::size_t end) {
  SparseMatrix part;
  part.rows = static_cast<std::uint32_t>(end - begin);
  part.columns = matrix.columns;
  const std::size_t first = matrix.row_ptr[begin], last = matrix.row_ptr[end];
  for (std::size_t row = begin; row <= end; ++row) part.row_ptr.push_back(matrix.row_ptr[row] - first);
  part.col_idx.assign(matrix.col_idx.begin() + static_cast<std::ptrdiff_t>(first),
                      matrix.col_idx.begin() + static_cast<std::ptrdiff_t>(last));
  part.values.assign(matrix.values.begin() + static_cast<std::ptrdiff_t>(first),
                     matrix.values.begin() + static_cast<std::ptrdiff_t>(last));
  return part;
}

}  // namespace rigl
