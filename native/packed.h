// Sparse weights in compressed sparse row format, serialized as they are stored in an ONNX file. Little-endian:
//
//   "RGLS"  version u32 = 1  rows u32  columns u32  non-zeros u64  index bytes u32 (2 or 4)  zero u32
//   non-zeros per row u32[rows]   values f32[non-zeros]   column indices u16 or u32[non-zeros], increasing within a row
//
// The format does not depend on the processor: blocks that fit its caches are planned when an operator first runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace rigl {

struct SparseMatrix {
  std::uint32_t rows = 0, columns = 0;
  std::vector<std::size_t> row_ptr;  // [rows + 1]
  std::vector<std::uint32_t> col_idx;
  std::vector<float> values;
};

// Parse any bytes. Returns a message that says what is invalid, or an empty string and the matrix.
std::string read_packed(const void* bytes, std::size_t size, SparseMatrix* out);

// Some of the rows.
SparseMatrix rows_of(const SparseMatrix& matrix, std::size_t begin, std::size_t end);

}  // namespace rigl
