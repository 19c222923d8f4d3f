// Any bytes as packed weights: either rejected with a message, or parsed into a valid matrix and multiplied.
#include "../../native/matmul.h"
#include "harness.h"

using namespace harness;

namespace {

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check_matrix(const rigl::SparseMatrix& matrix) {
  expect(matrix.rows > 0 && matrix.columns > 0, "no rows or columns");
  expect(matrix.row_ptr.size() == std::size_t{matrix.rows} + 1, "wrong length of row_ptr");
  expect(matrix.row_ptr.front() == 0 && matrix.row_ptr.back() == matrix.values.size(),
         "row_ptr does not cover the values");
  expect(matrix.col_idx.size() == matrix.values.size(), "col_idx and values differ in length");
  for (std::uint32_t row = 0; row < matrix.rows; ++row) {
    expect(matrix.row_ptr[row] <= matrix.row_ptr[row + 1], "row_ptr decreases");
    for (std::size_t k = matrix.row_ptr[row]; k < matrix.row_ptr[row + 1]; ++k) {
      expect(matrix.col_idx[k] < matrix.columns, "column index out of range");
      expect(k == matrix.row_ptr[row] || matrix.col_idx[k - 1] < matrix.col_idx[k], "column indices do not increase");
    }
  }
}

void multiply(const rigl::SparseMatrix& matrix, std::size_t batch, const rigl::KernelTable& kernels) {
  const std::vector<float> x(batch * matrix.columns, 1.0f);
  std::vector<float> y(batch * matrix.rows, 0.5f), expected;
  rigl::SparseMatMul product(matrix, kernels);
  product.run({x.data(), batch, nullptr, y.data(), false, false, {-kInfinity, kInfinity}}, serial_threads(2));
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t row = i % matrix.rows;
    double sum = 0, size = 0;
    for (std::size_t k = matrix.row_ptr[row]; k < matrix.row_ptr[row + 1]; ++k) {
      sum += static_cast<double>(matrix.values[k]);
      size += std::fabs(static_cast<double>(matrix.values[k]));
    }
    const bool sane = size < 1e30;  // no NaN, no overflow in between
    expect(!sane || std::fabs(static_cast<double>(y[i]) - sum) <= 1e-5 * size, "wrong sum");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  rigl::SparseMatrix matrix;
  const std::string wrong = rigl::read_packed(data, size, &matrix);
  if (!wrong.empty()) return 0;
  check_matrix(matrix);
  if (matrix.columns > 200000) return 0;  // the input would be too long
  // Wide matrices are slow: test them with one instruction set.
  const std::uint32_t first = matrix.columns > 5000 ? matrix.rows % 3 : 0, end = matrix.columns > 5000 ? first + 1 : 3;
  for (std::uint32_t set = first; set < end; ++set) {
    multiply(matrix, 1, kernels(set));
    multiply(matrix, 3, kernels(set));
  }
  return 0;
}
