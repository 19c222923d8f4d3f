// Sparse weights in compressed sparse row format, serialized as they are stored in an ONNX file. Little-endian:
//
//   "RGLS"  version u32  rows u32  columns u32  non-zeros u64  index bytes u32 (2 or 4)  kind of values u32
//   non-zeros per row u32[rows]   values[non-zeros]   column indices u16 or u32[non-zeros], increasing within a row
//
// Version 1: values f32; their kind is not read. Version 2: kind 1: finite values f16; kind 2: values i8, each times
// the scale of its row; before the values stand the scales f32[rows], between 1e-30 and 1e30.
//
// The format does not depend on the processor: blocks that fit its caches are planned when an operator first runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels.h"

namespace rigl {

struct SparseMatrix {
  std::uint32_t rows = 0, columns = 0;
  std::vector<std::size_t> row_ptr;  // [rows + 1]
  std::vector<std::uint32_t> col_idx;
  std::vector<float> values;
  ValueKind kind = ValueKind::kFloat32;  // how the values can be stored without a change
  std::vector<float> scales;             // [rows] of values of 8 bits
  std::function<SparseMatrix()> again;   // reads the matrix from bytes that outlive it; empty if there are none
};

// A matrix that is wanted now and then, whenever a plan is made of it: read again instead of kept, if it can be.
class StoredMatrix {
 public:
  using Change = std::function<SparseMatrix(SparseMatrix)>;

  // The matrix after a change, which is made anew each time.
  StoredMatrix(SparseMatrix matrix, const Change& change);
  StoredMatrix(SparseMatrix matrix);  // NOLINT: as it is

  operator SparseMatrix() const { return read_(); }  // NOLINT: wherever a matrix is expected

  std::uint32_t rows, columns;
  struct {
    std::size_t count;
    std::size_t size() const { return count; }
  } values;

 private:
  std::function<SparseMatrix()> read_;
};

// Parse any bytes. Returns a message that says what is invalid, or an empty string and the matrix.
std::string read_packed(const void* bytes, std::size_t size, SparseMatrix* out);

// Some of the rows.
SparseMatrix rows_of(const SparseMatrix& matrix, std::size_t begin, std::size_t end);

}  // namespace rigl
