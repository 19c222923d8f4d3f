#include "packed.h"

#include <cstring>
#include <memory>
#include <utility>

#include "half.h"

namespace rigl {
namespace {

constexpr std::size_t kHeader = 32;
constexpr std::uint32_t kPlainVersion = 1, kNarrowVersion = 2;
constexpr std::uint32_t kShortIndexColumns = 65536;  // up to this many columns an index has 16 bits
// A value of 8 bits is found again by dividing by its scale, which neither overflows nor loses bits within these.
constexpr float kMinScale = 1e-30f, kMaxScale = 1e30f;

template <class Number>
Number number_at(const unsigned char* bytes, std::size_t offset) {
  Number value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

struct Header {
  std::size_t nonzeros = 0, index_bytes = 0;
  ValueKind kind = ValueKind::kFloat32;

  std::size_t value_bytes() const { return kind == ValueKind::kFloat32 ? 4 : kind == ValueKind::kFloat16 ? 2 : 1; }
  std::size_t row_bytes() const { return kind == ValueKind::kInt8 ? 8 : 4; }
};

std::string read_header(const unsigned char* from, std::size_t size, Header* header, SparseMatrix* out) {
  if (size < kHeader || std::memcmp(from, "RGLS", 4) != 0)
    return "not packed weights: expected bytes that start with RGLS";
  const auto version = number_at<std::uint32_t>(from, 4), kind = number_at<std::uint32_t>(from, 28);
  if (version != kPlainVersion && version != kNarrowVersion)
    return "packed weights: unsupported version, export the file again";
  out->rows = number_at<std::uint32_t>(from, 8);
  out->columns = number_at<std::uint32_t>(from, 12);
  header->nonzeros = number_at<std::uint64_t>(from, 16);
  header->index_bytes = number_at<std::uint32_t>(from, 24);
  if (version == kNarrowVersion && kind != 1 && kind != 2) return "packed weights: unknown kind of values";
  if (version == kNarrowVersion) header->kind = out->kind = static_cast<ValueKind>(kind);
  if (out->rows == 0 || out->columns == 0) return "packed weights: no rows or no columns";
  if (header->index_bytes != (out->columns <= kShortIndexColumns ? 2u : 4u))
    return "packed weights: wrong size of indices";
  const std::size_t room = size - kHeader, each = header->value_bytes() + header->index_bytes;
  if (out->rows > room / header->row_bytes() || header->nonzeros > room / each) return "packed weights: truncated";
  const bool fits = kHeader + out->rows * header->row_bytes() + header->nonzeros * each == size;
  return fits ? "" : "packed weights: wrong length";
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

std::string read_halves(const unsigned char* from, SparseMatrix* out) {
  for (std::size_t k = 0; k < out->values.size(); ++k) {
    const auto bits = number_at<std::uint16_t>(from, 2 * k);
    if (!is_finite_half(bits)) return "packed weights: values of 16 bits that are not finite";
    out->values[k] = half_value(bits);
  }
  return "";
}

std::string read_scaled(const unsigned char* scales, const unsigned char* from, SparseMatrix* out) {
  out->scales.resize(out->rows);
  std::memcpy(out->scales.data(), scales, out->rows * sizeof(float));
  for (std::uint32_t row = 0; row < out->rows; ++row) {
    const float scale = out->scales[row];
    if (!(scale >= kMinScale && scale <= kMaxScale)) return "packed weights: a scale that is not a usual number";
    for (std::size_t k = out->row_ptr[row]; k < out->row_ptr[row + 1]; ++k) {
      out->values[k] = static_cast<float>(number_at<std::int8_t>(from, k)) * scale;
    }
  }
  return "";
}

}  // namespace

std::string read_packed(const void* bytes, std::size_t size, SparseMatrix* out) {
  const auto* from = static_cast<const unsigned char*>(bytes);
  Header header;
  std::string wrong = read_header(from, size, &header, out);
  if (!wrong.empty()) return wrong;
  out->row_ptr.assign(std::size_t{out->rows} + 1, 0);
  out->col_idx.resize(header.nonzeros);
  out->values.resize(header.nonzeros);
  const unsigned char* counts = from + kHeader;
  const unsigned char* values = counts + out->rows * header.row_bytes();
  const unsigned char* indices = values + header.nonzeros * header.value_bytes();
  wrong = header.index_bytes == 2 ? read_rows<std::uint16_t>(counts, indices, out)
                                  : read_rows<std::uint32_t>(counts, indices, out);
  if (!wrong.empty()) return wrong;
  if (header.kind == ValueKind::kFloat16) return read_halves(values, out);
  if (header.kind == ValueKind::kInt8) return read_scaled(counts + std::size_t{out->rows} * 4, values, out);
  if (header.nonzeros > 0) std::memcpy(out->values.data(), values, header.nonzeros * 4);
  return "";
}

StoredMatrix::StoredMatrix(SparseMatrix matrix, const Change& change) {
  const std::function<SparseMatrix()> again = std::move(matrix.again);
  SparseMatrix changed = change(std::move(matrix));
  rows = changed.rows;
  columns = changed.columns;
  values = {changed.values.size()};
  if (again) {
    read_ = [again, change] { return change(again()); };
  } else {
    read_ = [kept = std::make_shared<const SparseMatrix>(std::move(changed))] { return *kept; };
  }
}

StoredMatrix::StoredMatrix(SparseMatrix matrix)
    : StoredMatrix(std::move(matrix), [](SparseMatrix all) { return all; }) {}

SparseMatrix rows_of(const SparseMatrix& matrix, std::size_t begin, std::size_t end) {
  const auto part_of = [](const auto& all, std::size_t from, std::size_t to) {
    return std::decay_t<decltype(all)>(all.begin() + static_cast<std::ptrdiff_t>(from),
                                       all.begin() + static_cast<std::ptrdiff_t>(to));
  };
  SparseMatrix part;
  part.rows = static_cast<std::uint32_t>(end - begin);
  part.columns = matrix.columns;
  const std::size_t first = matrix.row_ptr[begin], last = matrix.row_ptr[end];
  for (std::size_t row = begin; row <= end; ++row) part.row_ptr.push_back(matrix.row_ptr[row] - first);
  part.col_idx = part_of(matrix.col_idx, first, last);
  part.values = part_of(matrix.values, first, last);
  part.kind = matrix.kind;
  if (!matrix.scales.empty()) part.scales = part_of(matrix.scales, begin, end);
  return part;
}

}  // namespace rigl
