// Dense depthwise convolution of images [batch][channels][height][width]. Between sparse layers it saves ONNX Runtime
// from converting images to its blocked layout and back.

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
  // The weights are [channels][filter rows][filter columns].
  DepthwiseConv(std::vector<float> weights, const ConvShape& shape, const KernelTable& kernels)
      : weights_(std::move(weights)), shape_(shape), kernels_(kernels) {}

  std::size_t channels() const { return weights_.size() / static_cast<std::size_t>(shape_.taps()); }
  const ConvShape& shape() const { return shape_; }
  // The residual of the call is ignored.
  void run(const ConvCall& call, const Threads& threads) const;

 private:
  void run_direct(const ConvCall& call, const Threads& threads) const;

  std::vector<float> weights_;
  ConvShape shape_;
  const KernelTable& kernels_;
};

// Returns what is invalid about filters and their shape, or an empty string.
std::string check_depthwise(const std::vector<float>& weights, const ConvShape& shape);

}  // namespace rigl
