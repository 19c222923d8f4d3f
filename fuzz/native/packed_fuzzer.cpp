// Any bytes as packed weights: refused in a sentence, or read into a matrix that is what it says, and multiplied.
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
  expect(matrix.starts.size() == std::size_t{matrix.rows} + 1, "another number of rows");
  expect(matrix.starts.front() == 0 && matrix.starts.back() == matrix.values.size(), "rows that do not hold all");
  expect(matrix.places.size() == matrix.values.size(), "places without values");
  for (std::uint32_t row = 0; row < matrix.rows; ++row) {
    expect(matrix.starts[row] <= matrix.starts[row + 1], "a row that ends before it begins");
    for (std::size_t k = matrix.starts[row]; k < matrix.starts[row + 1]; ++k) {
      expect(matrix.places[k] < matrix.columns, "a column that is not there");
      expect(k == matrix.starts[row] || matrix.places[k - 1] < matrix.places[k], "columns out of order");
    }
  }
}

void multiply(const rigl::SparseMatrix& matrix, std::size_t batch, const rigl::KernelTable& kernels) {
  const std::vector<float> x(batch * matrix.columns, 1.0f);
  std::vector<float> y(batch * matrix.rows, 0.5f), expected;
  rigl::SparseMatMul product(matrix, kernels);
  product.run({x.data(), batch, nullptr, y.data(), false, false, {-kInfinity, kInfinity}}, in_turn(2));
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t row = i % matrix.rows;
    double sum = 0, size = 0;
    for (std::size_t k = matrix.starts[row]; k < matrix.starts[row + 1]; ++k) {
      sum += static_cast<double>(matrix.values[k]);
      size += std::fabs(static_cast<double>(matrix.values[k]));
    }
    const bool sane = size < 1e30;  // neither NaN, nor infinity on the way
    expect(!sane || std::fabs(static_cast<double>(y[i]) - sum) <= 1e-5 * size, "a sum that is not the sum");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  rigl::SparseMatrix matrix;
  const std::string wrong = rigl::read_packed(data, size, &matrix);
  if (!wrong.empty()) return 0;
  check_matrix(matrix);
  if (matrix.columns > 200000) return 0;  // so long an input is not made
  // Wide ones take long: one set of kernels is enough for them.
  const std::uint32_t first = matrix.columns > 5000 ? matrix.rows % 3 : 0, end = matrix.columns > 5000 ? first + 1 : 3;
  for (std::uint32_t set = first; set < end; ++set) {
    multiply(matrix, 1, kernels(set));
    multiply(matrix, 3, kernels(set));
  }
  return 0;
}
