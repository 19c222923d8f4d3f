// Convolutions with any window over images that change from run to run, against loops over the non-zeros.
#include "harness.h"

using namespace harness;

namespace {

// One output of one image: the sum over the non-zeros of its row.
double sum_at(const rigl::SparseMatrix& matrix, const rigl::ConvShape& shape, const Images& images, const float* image,
              std::uint32_t row, std::int64_t p) {
  const auto taps = static_cast<std::uint32_t>(shape.taps());
  double sum = 0;
  for (std::size_t k = matrix.row_ptr[row]; k < matrix.row_ptr[row + 1]; ++k) {
    const std::int64_t channel = matrix.col_idx[k] / taps, tap = matrix.col_idx[k] % taps;
    const std::int64_t pixel = images.pixel(shape, p, tap);
    if (pixel < 0) continue;
    sum += static_cast<double>(matrix.values[k] * image[channel * images.height * images.width + pixel]);
  }
  return sum;
}

// Few non-zeros among very many columns.
rigl::SparseMatrix scattered(Integers* integers, std::uint32_t rows, std::uint32_t columns) {
  rigl::SparseMatrix matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.row_ptr.push_back(0);
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::uint64_t column = integers->next() % columns;
    for (; column < columns; column += 1 + integers->next() % (columns / 5 + 1)) {
      matrix.col_idx.push_back(static_cast<std::uint32_t>(column));
      matrix.values.push_back(integers->number());
    }
    matrix.row_ptr.push_back(matrix.col_idx.size());
  }
  return matrix;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const rigl::KernelTable& table = kernels(bytes.byte());
  Integers integers(bytes.byte());
  const rigl::ConvShape shape = conv_shape(&bytes);
  Images images{};
  images.channels = static_cast<std::size_t>(bytes.range(1, 9));
  images.rows = static_cast<std::size_t>(bytes.range(1, 12));
  const std::uint32_t percent = bytes.byte() % 101;
  rigl::SparseMatrix tiny = sparse_matrix(&integers, 1, 1, 100);
  if (!valid(shape)) {
    if (rigl::check_conv(tiny, shape).empty()) std::abort();
    return 0;
  }
  const double columns = static_cast<double>(images.channels) * static_cast<double>(shape.taps());
  if (columns > 4e9) return 0;
  const auto wide = static_cast<std::uint32_t>(columns), rows = static_cast<std::uint32_t>(images.rows);
  const rigl::SparseMatrix matrix =
      columns > 5000 ? scattered(&integers, rows, wide) : sparse_matrix(&integers, rows, wide, percent);
  if (!rigl::check_conv(matrix, shape).empty()) std::abort();
  rigl::SparseConv conv(matrix, shape, table);
  for (int run = 0; run < 6; ++run) {
    images.resize(&bytes);
    const int threads = 1 + static_cast<int>(bytes.byte() % 4);
    const bool with_bias = bytes.flag(), with_residual = bytes.flag(), in_place = bytes.flag();
    const rigl::Clip clip = harness::clip(&bytes);
    const double each = static_cast<double>(matrix.values.size()) / static_cast<double>(images.rows) + 1;
    if (!images.fit(shape, 2e6 / each)) continue;
    const std::vector<float> x = integers.numbers(images.inputs()), bias = integers.numbers(images.rows);
    const std::vector<float> residual = integers.numbers(images.outputs());
    std::vector<float> y = in_place ? residual : std::vector<float>(images.outputs(), 0.5f), expected(y.size());
    conv.run({x.data(), images.batch, images.height, images.width, with_bias ? bias.data() : nullptr,
              with_residual ? (in_place ? y.data() : residual.data()) : nullptr, y.data(), clip},
             serial_threads(threads));
    const std::size_t pixels = static_cast<std::size_t>(images.out_height * images.out_width);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t row = i / pixels % images.rows;
      const float* image = x.data() + i / pixels / images.rows * images.channels *
                                          static_cast<std::size_t>(images.height * images.width);
      double sum =
          sum_at(matrix, shape, images, image, static_cast<std::uint32_t>(row), static_cast<std::int64_t>(i % pixels));
      if (with_bias) sum += static_cast<double>(bias[row]);
      if (with_residual) sum += static_cast<double>(residual[i]);
      expected[i] = clipped(sum, clip);
    }
    check("convolution", y, expected, 0.0f);
    if (bytes.rest() <= 0) break;
  }
  return 0;
}
