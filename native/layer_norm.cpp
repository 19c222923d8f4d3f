#include "layer_norm.h"

#include <algorithm>

#include "cpu.h"
#include "tiles.h"

namespace rigl {
namespace {

void normalize_one(const LayerNormCall& call, const KernelTable& kernels, std::size_t row) {
  const std::size_t at = row * call.size;
  const auto offset = [&](auto* from) { return from == nullptr ? nullptr : from + at; };
  kernels.normalize({call.x + at, offset(call.residual), call.scale, call.bias, call.y + at, offset(call.sum),
                     call.size, call.epsilon});
}

// A tile of a call, [size][width]: values that are stored row by row are transposed on the way in and out.
class NormTile {
 public:
  NormTile(const LayerNormCall& call, const KernelTable& kernels, const Tiles& tiles, std::size_t tile)
      : call_(call), kernels_(kernels), first_(tile * tiles.width * call.size), width_(tiles.width_of(tile)) {}

  void run() const {
    Scratch& buffers = scratch();
    float* y = target(call_.y, call_.y_by_column, &buffers.acc);
    float* sum = target(call_.sum, call_.sum_by_column, &buffers.outputs);
    const float* x = source(call_.x, call_.x_by_column, &buffers.activations);
    const float* residual = source(call_.residual, call_.residual_by_column, &shared_input());
    kernels_.normalize_columns(
        {{x, residual, call_.scale, call_.bias, y, sum, call_.size, call_.epsilon}, width_, width_});
    if (!call_.y_by_column) finish(y, call_.y);
    if (sum != nullptr && !call_.sum_by_column) finish(sum, call_.sum);
  }

 private:
  const float* source(const float* from, bool by_column, Buffer* buffer) const {
    if (from == nullptr || by_column) return from == nullptr ? nullptr : from + first_;
    float* tile = buffer->reserve(call_.size * width_);
    kernels_.transpose(from + first_, call_.size, width_, call_.size, tile, width_);
    return tile;
  }
  float* target(float* to, bool by_column, Buffer* buffer) const {
    if (to == nullptr || by_column) return to == nullptr ? nullptr : to + first_;
    return buffer->reserve(call_.size * width_);
  }
  void finish(const float* tile, float* to) const {
    kernels_.transpose(tile, width_, call_.size, width_, to + first_, call_.size);
  }

  const LayerNormCall& call_;
  const KernelTable& kernels_;
  std::size_t first_, width_;
};

}  // namespace

void normalize_rows(const LayerNormCall& call, const KernelTable& kernels, const Threads& all) {
  const double elements = static_cast<double>(call.rows * call.size);
  const Threads threads = all.limited_to(elements * costs_of(kernels).layer_norm.elements);
  if (call.rows > 0 && (call.x_by_column || call.residual_by_column || call.y_by_column || call.sum_by_column)) {
    const Tiles tiles(call.rows, kernels);
    return parallel_for(threads, tiles.count, [&](std::size_t t) { NormTile(call, kernels, tiles, t).run(); });
  }
  const std::size_t chunks = std::min(call.rows, static_cast<std::size_t>(threads.count * threads.chunks_per_thread));
  parallel_for(threads, chunks, [&](std::size_t chunk) {
    const std::size_t end = call.rows * (chunk + 1) / chunks;
    for (std::size_t row = call.rows * chunk / chunks; row < end; ++row) normalize_one(call, kernels, row);
  });
}

}  // namespace rigl
