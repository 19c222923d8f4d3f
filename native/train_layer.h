// A sparse layer in training: its output, the gradient of its input, and the gradient of its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "threads.h"
#include "train_call.h"
#include "train_kernels.h"

namespace rigl {

class TrainLayer {
 public:
  virtual ~TrainLayer() = default;

  // Of each value: the index of its position.
  virtual const std::vector<std::uint32_t>& order() const = 0;

  virtual void forward(const TrainCall& call, const Threads& threads) = 0;

  void backward(const TrainCall& call, const Threads& threads) {
    if (call.dx != nullptr) input_gradient(call, threads);
    if (call.dvalues != nullptr) weight_gradient(call, threads);
  }

 protected:
  virtual void input_gradient(const TrainCall& call, const Threads& threads) = 0;
  virtual void weight_gradient(const TrainCall& call, const Threads& threads) = 0;
};

// To choose how many threads a product is worth.
constexpr double kNsPerProduct = 0.02;

// `positions` are the flat positions of the connections in the dense weight, ascending.
std::unique_ptr<TrainLayer> make_train_layer(const TrainShape& shape, const std::int64_t* positions, std::size_t count,
                                             const KernelTable& kernels);

// The loops of training that belong to those of inference.
const TrainKernels& train_kernels(const KernelTable& kernels);

// Return what is invalid about a layer, or null.
const char* check_train(const TrainShape& shape, const std::int64_t* positions, std::size_t count);

}  // namespace rigl
