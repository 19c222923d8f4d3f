// Dense convolution of images with few channels, the first layer of most networks, and the pooling that often follows:
// both give the layout in which the sparse layers read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conv.h"
#include "kernels.h"
#include "threads.h"

namespace rigl {

class StemConv {
 public:
  // The weights are [outputs][channels][rows of the filter][columns of the filter].
  StemConv(const std::vector<float>& weights, std::size_t outputs, const ConvShape& shape, const KernelTable& kernels);

  std::size_t outputs() const { return outputs_; }
  std::size_t channels() const { return columns_ / static_cast<std::size_t>(shape_.taps()); }
  const ConvShape& shape() const { return shape_; }
  // There is no residual.
  void run(const ConvCall& call, const Threads& threads) const;

 private:
  std::size_t outputs_, columns_;
  std::vector<float> packed_;  // [outputs / kStemRows][columns][kStemRows], zeros behind the last output
  ConvShape shape_;
  const KernelTable& kernels_;
};

// The largest pixel under each place of a window; what lies outside the image does not count.
void max_pool(const ConvCall& call, std::size_t channels, const ConvShape& shape, const KernelTable& kernels,
              const Threads& threads);

// What is wrong with weights or a window of such a shape, or nothing.
std::string check_stem(std::size_t count, std::size_t outputs, const ConvShape& shape);
std::string check_padding(const ConvShape& shape);

}  // namespace rigl
