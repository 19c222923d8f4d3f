// Dense convolution with a filter for each channel, [batch][channels][height][width]. Between sparse layers it spares the
// runtime from rearranging images into a layout of its own and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conv.h"
#include "kernels.h"
#include "threads.h"

namespace rigl {

class DepthwiseConv {
 public:
  // The weights are [channels][rows of the filter][columns of the filter].
  DepthwiseConv(std::vector<float> weights, const ConvShape& shape, const KernelTable& kernels)
      : weights_(std::move(weights)), shape_(shape), kernels_(kernels) {}

  std::size_t channels() const { return weights_.size() / static_cast<std::size_t>(shape_.taps()); }
  const ConvShape& shape() const { return shape_; }
  // There is no residual.
  void run(const ConvCall& call, const Threads& threads) const;

 private:
  void run_plainly(const ConvCall& call, const Threads& threads) const;

  std::vector<float> weights_;
  ConvShape shape_;
  const KernelTable& kernels_;
};

// What is wrong with filters and their shape, or nothing.
std::string check_depthwise(const std::vector<float>& weights, const ConvShape& shape);

}  // namespace rigl
