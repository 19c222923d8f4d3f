// A sparse linear layer in training. Activations are [features][batch].
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train_layer.h"
#include "train_pass.h"

namespace rigl {

class TrainLinear : public TrainLayer {
 public:
  TrainLinear(const TrainShape& shape, const std::int64_t* positions, std::size_t count, const KernelTable& kernels);

  const std::vector<std::uint32_t>& order() const override { return forward_.order; }
  void forward(const TrainCall& call, const Threads& threads) override;

 private:
  void input_gradient(const TrainCall& call, const Threads& threads) override;
  void weight_gradient(const TrainCall& call, const Threads& threads) override;

  const KernelTable& kernels_;
  const TrainKernels& train_;
  Pass forward_, transposed_;
  std::vector<std::uint32_t> from_;  // of each transposed value: its index in the order of the forward pass
  std::vector<float> values_;        // transposed
};

}  // namespace rigl
