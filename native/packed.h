// Sparse weights as bytes, the form in which they travel inside an ONNX file. Little-endian:
//
//   "RGLS"  version u32 = 1  rows u32  columns u32  non-zeros u64  bytes of an index u32 (2 or 4)  zero u32
//   non-zeros of each row u32[rows]   values f32[non-zeros]   columns u16 or u32[non-zeros], rising within a row
//
// It says nothing about the processor; blocks that fit its caches are made from it when an operator is created.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace rigl {

struct SparseMatrix {
  std::uint32_t rows = 0, columns = 0;
  std::vector<std::size_t> starts;  // of each row, and the end
  std::vector<std::uint32_t> places;
  std::vector<float> values;

  std::size_t count(std::uint32_t row) const { return starts[row + 1] - starts[row]; }
};

// Reads any bytes: gives a sentence about what is wrong with them, or nothing and the matrix.
std::string read_packed(const void* bytes, std::size_t size, SparseMatrix* out);

}  // namespace rigl
