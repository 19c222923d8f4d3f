#include "gru.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace rigl {

void SparseGru::run(const GruCall& call, const Threads& threads) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::size_t state = call.batch * size();
  static thread_local Buffer multiplied, zeros;
  float* rest = multiplied.floats(3 * state);
  const float* before = call.initial;
  if (before == nullptr) {
    float* fresh = zeros.floats(std::max<std::size_t>(state, 1));
    std::fill(fresh, fresh + state, 0.0f);
    before = fresh;
  }
  for (std::size_t step = 0; step < call.steps; ++step) {
    product_.run({before, call.batch, nullptr, rest, false, false, {-kInfinity, kInfinity}}, threads);
    float* after = call.y + step * state;
    for (std::size_t b = 0; b < call.batch; ++b) {
      const std::size_t three = 3 * size();
      kernels_.gru_gates({call.x + (step * call.batch + b) * three, rest + b * three, call.bias, before + b * size(),
                          after + b * size(), size()});
    }
    before = after;
  }
  if (call.last != nullptr && state > 0) std::memcpy(call.last, before, state * sizeof(float));
}

}  // namespace rigl
