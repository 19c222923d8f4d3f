#include "train_norm.h"

#include <cmath>

#include "huge_pages.h"

namespace rigl {
namespace {

constexpr double kNsPerFloat = 0.3;  // to choose how many threads are worth it

// Of a channel: y = x · scale + shift.
struct Line {
  double inverse;  // of the standard deviation
  float scale, shift;
};

Line line_of(const NormCall& call, std::size_t channel) {
  const double inverse =
      1.0 / std::sqrt(static_cast<double>(call.variance[channel]) + static_cast<double>(call.epsilon));
  const double scale = inverse * static_cast<double>(call.weight == nullptr ? 1.0f : call.weight[channel]);
  const double bias = call.bias == nullptr ? 0.0 : static_cast<double>(call.bias[channel]);
  const double shift = bias - static_cast<double>(call.mean[channel]) * scale;
  return {inverse, static_cast<float>(scale), static_cast<float>(shift)};
}

Threads worth(const NormCall& call, const Threads& threads) {
  return threads.limited_to(kNsPerFloat * static_cast<double>(call.channels * call.size));
}

void forward_channel(const TrainKernels& kernels, const NormCall& call, std::size_t channel) {
  const std::size_t size = static_cast<std::size_t>(call.size);
  const float* x = call.x + channel * size;
  const double count = static_cast<double>(size);
  call.mean[channel] = static_cast<float>(kernels.sum_distances(x, size, 0.0f, false) / count);
  call.variance[channel] = static_cast<float>(kernels.sum_distances(x, size, call.mean[channel], true) / count);
  const Line line = line_of(call, channel);
  kernels.scale_row(x, size, line.scale, line.shift, call.y + channel * size);
}

void backward_channel(const TrainKernels& kernels, const NormCall& call, std::size_t channel) {
  const std::size_t size = static_cast<std::size_t>(call.size);
  const Line line = line_of(call, channel);
  const NormRow row = {
      call.x + channel * size, call.dy + channel * size, size, call.mean[channel], line.scale, line.shift,
      call.clipped != 0};
  double plain = 0.0, weighted = 0.0;
  kernels.sum_gradients(row, &plain, &weighted);
  if (call.dweight != nullptr) call.dweight[channel] = static_cast<float>(weighted * line.inverse);
  if (call.dbias != nullptr) call.dbias[channel] = static_cast<float>(plain);
  if (call.dx == nullptr) return;
  const double share = static_cast<double>(line.scale) / static_cast<double>(size);
  kernels.spread_gradients(row, static_cast<float>(plain * share),
                           static_cast<float>(weighted * share * line.inverse * line.inverse),
                           call.dx + channel * size);
}

}  // namespace

void norm_forward(const TrainKernels& kernels, const NormCall& call, const Threads& threads) {
  prefer_huge_pages(call.y, static_cast<std::size_t>(call.channels * call.size));
  parallel_for(worth(call, threads), static_cast<std::size_t>(call.channels),
               [&](std::size_t channel) { forward_channel(kernels, call, channel); });
}

void norm_backward(const TrainKernels& kernels, const NormCall& call, const Threads& threads) {
  prefer_huge_pages(call.dx, static_cast<std::size_t>(call.channels * call.size));
  parallel_for(worth(call, threads), static_cast<std::size_t>(call.channels),
               [&](std::size_t channel) { backward_channel(kernels, call, channel); });
}

}  // namespace rigl
