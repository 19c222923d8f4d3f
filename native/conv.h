// Sparse convolution on images, [batch][channels][height][width]. Sums over channels and places of the filter.
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
#include "plan.h"
#include "threads.h"

namespace rigl {

struct Axis {
  std::int64_t kernel = 1, stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;

  // Length of the output, or less than one where the filter does not fit.
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
  const float* bias;      // by output channel, or none
  const float* residual;  // as y, or none; may be y itself
  float* y;
  Clip clip;
};

class SparseConv {
 public:
  // The columns of the matrix are (channel, row of the filter, column of the filter), over all groups. Both must have
  // passed `check_conv`.
  SparseConv(SparseMatrix matrix, const ConvShape& shape, const KernelTable& kernels);

  std::size_t channels() const { return channels_; }
  std::size_t rows() const { return matrix_.rows; }
  const ConvShape& shape() const { return shape_; }
  void run(const ConvCall& call, const Threads& threads);

 private:
  struct Plan;
  double nanoseconds(const ConvCall& call) const;
  SparseMatMul& product();
  std::shared_ptr<const Plan> plan(std::int64_t height, std::int64_t width, std::size_t batch, int threads);
  void run_images(const ConvCall& call, const Plan& plan, const Threads& threads) const;
  void run_tile(const ConvCall& call, const Plan& plan, const float* planes, std::size_t image, std::size_t tile,
                std::size_t group) const;

  std::size_t channels_;
  std::vector<std::uint32_t> places_;  // of the filter, those that have a weight
  SparseMatrix matrix_;                // its columns are (channel, number in `places_`)
  ConvShape shape_;
  const KernelTable& kernels_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Plan>> plans_;
  std::unique_ptr<SparseMatMul> product_;  // for images of one pixel, made when one comes
};

// What is wrong with one axis, or with a shape; or nothing.
std::string check_axis(const Axis& axis);
std::string check_conv(const SparseMatrix& matrix, const ConvShape& shape);

}  // namespace rigl
