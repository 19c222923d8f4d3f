// A sparse convolution in training: its output, the gradient of its input, and the gradient of its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "threads.h"
#include "train_call.h"
#include "train_conv_pass.h"
#include "train_kernels.h"

namespace rigl {

class TrainConv {
 public:
  // `positions` are the flat positions of the connections in the dense weight, ascending.
  TrainConv(const TrainShape& shape, const std::int64_t* positions, std::size_t count, const TrainKernels& kernels);

  // Of each value: the index of its position.
  const std::vector<std::uint32_t>& order() const { return forward_.pass.order; }

  void forward(const TrainCall& call, const Threads& threads);
  void backward(const TrainCall& call, const Threads& threads);

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
  void input_gradient(const TrainCall& call, const Threads& threads);
  void weight_gradient(const TrainCall& call, const Threads& threads);

  TrainShape shape_;
  const TrainKernels& kernels_;
  Product forward_, weights_;
  std::vector<Product> inputs_;  // one for each phase of the stride
};

}  // namespace rigl
