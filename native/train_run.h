// Linear layers in training, one after another, with ReLU between them: all products of a pass in one call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads.h"
#include "train_layer.h"

namespace rigl {

// One layer of a run. Activations and gradients are [features][batch].
struct RunStage {
  TrainLayer* layer;
  std::int64_t outputs;
  const float* values;  // of the connections in the layer's order; or, with `order`, the dense weight
  const float* bias;    // per output, or null
  float* y;             // its output, after ReLU if it has one
  float* dy;            // room for the gradient of its output before ReLU
  float* dvalues;       // as `values`, or null
  float* dbias;         // or null
  // Of a dense weight: the position of each value in the layer's order, and room for the values in that order.
  const std::int64_t* order;
  float* packed;
  std::int64_t has_relu;
};

struct RunCall {
  RunStage* stages;
  std::int64_t count, batch;
  const float* x;
  const float* dy;  // the gradient of the last output
  float* dx;        // or null: not needed
};

void run_forward(const RunCall& call, const Threads& threads);
void run_backward(const RunCall& call, const Threads& threads);

}  // namespace rigl
