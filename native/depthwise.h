// Dense depthwise convolution of images [batch][channels][height][width]. Between sparse layers it saves ONNX Runtime
// from converting images to its blocked layout and back.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "conv.h"
#include "kernels.h"
#include "threads.h"

namespace rigl {

struct DepthwiseLayout;

class DepthwiseConv {
 public:
  // The weights are [channels][filter rows][filter columns].
  DepthwiseConv(std::vector<float> weights, const ConvShape& shape, const KernelTable& kernels);

  std::size_t channels() const { return weights_.size() / static_cast<std::size_t>(shape_.taps()); }
  const ConvShape& shape() const { return shape_; }
  // The residual of the call is ignored.
  void run(const ConvCall& call, const Threads& threads);

 private:
  void run_direct(const ConvCall& call, const Threads& threads) const;
  std::shared_ptr<const DepthwiseLayout> layout(std::int64_t height, std::int64_t width);

  std::vector<float> weights_, transposed_;  // [channels][rows][columns], and [channels][columns][rows]
  ConvShape shape_;
  const KernelTable& kernels_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const DepthwiseLayout>> layouts_;  // of the last sizes of images
};

// Returns what is invalid about filters and their shape, or an empty string.
std::string check_depthwise(const std::vector<float>& weights, const ConvShape& shape);

}  // namespace rigl
