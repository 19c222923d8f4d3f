// Sparse convolution of images [batch][channels][height][width].
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "matmul.h"
#include "packed.h"
#include "threads.h"

namespace rigl {

struct Axis {
  std::int64_t kernel = 1, stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;

  // Length of the output; 0 where the filter does not fit.
  std::int64_t output(std::int64_t length) const {
    const std::int64_t room = length + pad_begin + pad_end - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  }
};

struct ConvShape {
  Axis rows, columns;
  std::int64_t taps() const { return rows.kernel * columns.kernel; }
};

struct ConvCall {
  const float* x;
  std::size_t batch;
  std::int64_t height, width;
  const float* bias;      // per output channel, or null
  const float* residual;  // same layout as y, or null; may be y itself
  float* y;
  Clip clip;
  Activation activation = Activation::kNone;
  const float* scale = nullptr;  // [batch][channels], by which the inputs are multiplied; or null
};

struct ConvPlan;

class SparseConv {
 public:
  // The columns of the matrix are (channel, filter row, filter column), over all groups. Checked by `check_conv`.

  SparseConv(SparseMatrix matrix, const ConvShape& shape, const KernelTable& kernels);

  std::size_t channels() const { return channels_; }
  std::size_t rows() const { return matrix_.rows; }
  const ConvShape& shape() const { return shape_; }
  void run(const ConvCall& call, const Threads& threads);

 private:
  double estimate_ns(const ConvCall& call) const;
  SparseMatMul& matmul();
  std::shared_ptr<const ConvPlan> plan(std::int64_t height, std::int64_t width, std::size_t batch, int threads);
  void run_images(const ConvCall& call, const ConvPlan& plan, const Threads& threads) const;
  void run_tile(const ConvCall& call, const ConvPlan& plan, const float* planes, std::size_t image, std::size_t tile,
                std::size_t group) const;

  std::size_t channels_;
  std::vector<std::uint32_t> taps_;  // filter taps that have a weight
  StoredMatrix matrix_;              // its columns are (channel, index into `taps_`)
  ConvShape shape_;
  const KernelTable& kernels_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const ConvPlan>> plans_;
  std::unique_ptr<SparseMatMul> matmul_;  // for images of one pixel, created on first use
};

// Return what is invalid about an axis or a shape, or an empty string.
std::string check_axis(const Axis& axis);
std::string check_conv(const SparseMatrix& matrix, const ConvShape& shape);

}  // namespace rigl
