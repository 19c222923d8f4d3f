#include "train_run.h"

#include <algorithm>
#include <cstring>

namespace rigl {
namespace {

std::size_t floats(const RunStage& stage, std::int64_t batch) {
  return static_cast<std::size_t>(stage.outputs) * static_cast<std::size_t>(batch);
}

std::size_t connections(const RunStage& stage) { return stage.layer->order().size(); }

const float* values_of(const RunStage& stage) { return stage.order == nullptr ? stage.values : stage.packed; }

void pack_values(const RunStage& stage) {
  for (std::size_t i = 0; i < connections(stage); ++i) stage.packed[i] = stage.values[stage.order[i]];
}

// NaN stays NaN, as with torch.
void apply_relu(float* y, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) y[i] = y[i] < 0 ? 0 : y[i];
}

void mask_gradient(const float* __restrict y, float* __restrict gradient, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) gradient[i] = y[i] <= 0 ? 0 : gradient[i];
}

// Several sums at once, which the compiler keeps in a vector.
float sum(const float* values, std::int64_t count) {
  constexpr std::int64_t kSums = 16;
  float sums[kSums] = {};
  std::int64_t at = 0;
  for (; at + kSums <= count; at += kSums) {
    for (std::int64_t i = 0; i < kSums; ++i) sums[i] += values[at + i];
  }
  for (; at < count; ++at) sums[at % kSums] += values[at];
  for (std::int64_t width = kSums / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

void bias_gradient(const RunStage& stage, const float* dy, std::int64_t batch) {
  for (std::int64_t row = 0; row < stage.outputs; ++row) stage.dbias[row] = sum(dy + row * batch, batch);
}

void weight_and_input_gradient(const RunStage& stage, const TrainCall& call, const Threads& threads) {
  if (stage.order == nullptr || call.dvalues == nullptr) {
    stage.layer->backward(call, threads);
    return;
  }
  float* packed = shared_input().reserve(connections(stage));
  TrainCall own = call;
  own.dvalues = packed;
  stage.layer->backward(own, threads);
  for (std::size_t i = 0; i < connections(stage); ++i) stage.dvalues[stage.order[i]] = packed[i];
}

}  // namespace

void run_forward(const RunCall& call, const Threads& threads) {
  const float* x = call.x;
  for (RunStage* stage = call.stages; stage != call.stages + call.count; ++stage) {
    if (stage->order != nullptr) pack_values(*stage);
    stage->layer->forward({1, 1, call.batch, x, values_of(*stage), stage->bias, stage->y, nullptr, nullptr, nullptr},
                          threads);
    if (stage->has_relu) apply_relu(stage->y, floats(*stage, call.batch));
    x = stage->y;
  }
}

void run_backward(const RunCall& call, const Threads& threads) {
  const float* gradient = call.dy;  // of the stage's output
  for (std::int64_t i = call.count - 1; i >= 0; --i) {
    const RunStage& stage = call.stages[i];
    const float* x = i == 0 ? call.x : call.stages[i - 1].y;
    float* dx = i == 0 ? call.dx : call.stages[i - 1].dy;
    if (stage.has_relu) {
      if (gradient != stage.dy) std::memcpy(stage.dy, gradient, floats(stage, call.batch) * sizeof(float));
      mask_gradient(stage.y, stage.dy, floats(stage, call.batch));
      gradient = stage.dy;
    }
    if (stage.order != nullptr) pack_values(stage);
    if (stage.dbias != nullptr) bias_gradient(stage, gradient, call.batch);
    weight_and_input_gradient(
        stage, {1, 1, call.batch, x, values_of(stage), nullptr, nullptr, gradient, dx, stage.dvalues}, threads);
    gradient = dx;
  }
}

}  // namespace rigl
