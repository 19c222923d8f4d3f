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

  std::size_t channels() const { return channels_; }
  const ConvShape& shape() const { return shape_; }
  std::size_t pixels(const ConvCall& call) const;  // of the output
  double estimate_ns(const ConvCall& call) const;
  // The residual of the call is ignored. `means`, if not null, receives the mean of each channel of the output.
  void run(const ConvCall& call, const Threads& threads, float* means = nullptr);

  // Channel by channel: `begin` returns room for one, valid until the thread calls it again. Rows of a channel are laid
  // into it, then it is filtered.
  struct Room {
    std::shared_ptr<const DepthwiseLayout> layout;  // null: pixel by pixel
    float* planes;                                  // null: images are read where they are
    std::size_t pixels;                             // of the output
  };
  Room begin(const ConvCall& call);
  void lay(const Room& room, const float* image, std::size_t first, std::size_t rows) const;
  // With the epilogue of the call; y is that of the channel. The image is used where it is read in place.
  void filter(const ConvCall& call, const Room& room, std::size_t channel, const float* image, float* y) const;

 private:
  std::shared_ptr<const DepthwiseLayout> layout_for(std::int64_t height, std::int64_t width);

  std::vector<float> weights_;
  std::size_t channels_;
  ConvShape shape_;
  const KernelTable& kernels_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const DepthwiseLayout>> layouts_;  // of the last sizes of images
};

// Returns what is invalid about filters and their shape, or an empty string.
std::string check_depthwise(const std::vector<float>& weights, const ConvShape& shape);

}  // namespace rigl
