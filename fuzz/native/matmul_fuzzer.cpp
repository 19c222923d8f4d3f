// Products of any size, number of samples and layout, against loops over the non-zeros.
#include "../../native/matmul.h"
#include "../../native/tiles.h"
#include "harness.h"

using namespace harness;

namespace {

// Index of feature `f` of sample `b`, in tiles or one sample after the other.
std::size_t index_of(const rigl::Tiles* tiles, std::size_t b, std::size_t f, std::size_t features) {
  if (tiles == nullptr) return b * features + f;
  const std::size_t tile = b / tiles->width;
  return tiles->begin(tile, features) + f * tiles->width_of(tile) + b % tiles->width;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const rigl::KernelTable& table = kernels(bytes.byte());
  Integers integers(bytes.byte());
  const auto rows = static_cast<std::uint32_t>(bytes.range(1, 300)),
             columns = static_cast<std::uint32_t>(bytes.range(1, 600));
  const rigl::SparseMatrix matrix = sparse_matrix(&integers, rows, columns, bytes.byte() % 101);
  rigl::SparseMatMul product(matrix, table);
  // Several runs of one operator, so that plans are reused and evicted.
  for (int run = 0; run < 6; ++run) {
    const std::size_t batch = static_cast<std::size_t>(bytes.range(0, 150));
    const int threads = 1 + static_cast<int>(bytes.byte() % 4);
    const bool x_by_column = bytes.flag(), y_by_column = bytes.flag(), with_bias = bytes.flag();
    const rigl::Clip clip = harness::clip(&bytes);
    if (matrix.values.size() * batch > 500000) continue;  // too slow to check
    const std::vector<float> x = integers.numbers(batch * columns), bias = integers.numbers(rows);
    std::vector<float> y(batch * rows, 0.5f), expected(batch * rows);
    product.run({x.data(), batch, with_bias ? bias.data() : nullptr, y.data(), x_by_column, y_by_column, clip},
                serial_threads(threads));
    const rigl::Tiles layout(batch, table);
    const rigl::Tiles *x_tiles = x_by_column ? &layout : nullptr, *y_tiles = y_by_column ? &layout : nullptr;
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::uint32_t r = 0; r < rows; ++r) {
        double sum = with_bias ? static_cast<double>(bias[r]) : 0.0;
        for (std::size_t k = matrix.row_ptr[r]; k < matrix.row_ptr[r + 1]; ++k) {
          sum += static_cast<double>(matrix.values[k] * x[index_of(x_tiles, b, matrix.col_idx[k], columns)]);
        }
        expected[index_of(y_tiles, b, r, rows)] = clipped(sum, clip);
      }
    }
    check("product", y, expected, 0.0f);
    if (bytes.rest() <= 0) break;
  }
  return 0;
}
