#include "layer_norm.h"

#include <algorithm>

#include "cpu.h"

namespace rigl {

void normalize_rows(const LayerNormCall& call, const KernelTable& kernels, const Threads& all) {
  const double elements = static_cast<double>(call.rows * call.size);
  const Threads threads = all.limited_to(elements * costs_of(kernels).layer_norm.elements);
  const auto offset = [](auto* from, std::size_t by) { return from == nullptr ? nullptr : from + by; };
  const std::size_t chunks = std::min(call.rows, static_cast<std::size_t>(threads.count * threads.chunks_per_thread));
  parallel_for(threads, chunks, [&](std::size_t chunk) {
    const std::size_t end = call.rows * (chunk + 1) / chunks;
    for (std::size_t row = call.rows * chunk / chunks; row < end; ++row) {
      const std::size_t at = row * call.size;
      kernels.normalize({call.x + at, offset(call.residual, at), call.scale, call.bias, call.y + at,
                         offset(call.sum, at), call.size, call.epsilon});
    }
  });
}

}  // namespace rigl
