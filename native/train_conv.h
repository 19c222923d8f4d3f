// A sparse convolution in training: its output, the gradient of its input, and the gradient of its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train_conv_pass.h"
#include "train_layer.h"

namespace rigl {

class TrainConv : public TrainLayer {
 public:
  TrainConv(const TrainShape& shape, const std::int64_t* positions, std::size_t count, const TrainKernels& kernels);

  const std::vector<std::uint32_t>& order() const override { return forward_.pass.order; }
  void forward(const TrainCall& call, const Threads& threads) override;

 private:
  struct Product {
    ConvPass pass;
    SlabOffsets places;
    std::vector<std::uint32_t> from;  // of each value: its index in the order of the forward pass
    std::vector<float> values;
  };

  void plan_input_gradient(const std::vector<ConvLink>& links, const std::vector<std::int64_t>& taps);
  void plan_weight_gradient(const std::vector<ConvLink>& links);
  std::vector<std::uint32_t> from_forward(const std::vector<std::uint32_t>& order) const;
  PixelGrid output(const TrainCall& call) const;
  void input_gradient(const TrainCall& call, const Threads& threads) override;
  void weight_gradient(const TrainCall& call, const Threads& threads) override;

  TrainShape shape_;
  const TrainKernels& kernels_;
  Product forward_, weights_;
  std::vector<Product> inputs_;  // one for each phase of the stride
};

}  // namespace rigl
