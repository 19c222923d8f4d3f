// The recurrent half of a GRU, with the reset gate before and after the product and in both directions, against the
// equations of the ONNX standard.

#include <algorithm>

#include "../../native/gru.h"
#include "recurrent.h"

using namespace harness;

namespace {

struct Step : Gates {
  const float* bias;
  bool reset_after;
};

std::vector<double> next(const Step& step, const std::vector<double>& state) {
  std::vector<double> reset(step.size), reset_state(step.size), after(step.size);
  for (std::size_t i = 0; i < step.size; ++i) {
    reset[i] =
        sigmoid(static_cast<double>(step.x[step.size + i]) + dot(step.matrix, step.first + step.size + i, state));
    reset_state[i] = reset[i] * state[i];
  }
  for (std::size_t i = 0; i < step.size; ++i) {
    const std::size_t row = step.first + 2 * step.size + i;
    const double bias = step.bias == nullptr ? 0.0 : static_cast<double>(step.bias[i]);
    const double recurrent =
        step.reset_after ? reset[i] * (dot(step.matrix, row, state) + bias) : dot(step.matrix, row, reset_state);
    const double candidate = std::tanh(static_cast<double>(step.x[2 * step.size + i]) + recurrent);
    const double update = sigmoid(static_cast<double>(step.x[i]) + dot(step.matrix, step.first + i, state));
    after[i] = (1 - update) * candidate + update * state[i];
  }
  return after;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const rigl::KernelTable& table = kernels(bytes.byte());
  Integers integers(bytes.byte());
  rigl::GruShape shape;
  draw_directions(&bytes, &shape);
  shape.reset_after = bytes.flag();
  const std::size_t hidden = static_cast<std::size_t>(bytes.range(1, 40));
  const std::size_t directions = static_cast<std::size_t>(std::max(shape.directions, 1));
  const rigl::SparseMatrix matrix = state_weights(&bytes, &integers, directions * 3 * hidden, hidden);
  const bool fits = shape.directions == 1 || shape.directions == 2;
  if (rigl::check_gru(matrix, shape).empty() != fits) std::abort();
  if (!fits) return 0;
  rigl::SparseGru gru(matrix, shape, table);
  for (int turn = 0; turn < 3; ++turn) {
    const bool with_bias = bytes.flag() && shape.reset_after != 0;
    const Sequences run(&bytes);
    const std::size_t steps = run.steps, batch = run.batch;
    const std::vector<float> x = fractions(&integers, steps * batch * directions * 3 * hidden, 4),
                             bias = integers.numbers(directions * hidden),
                             start = fractions(&integers, directions * batch * hidden, 8);
    std::vector<float> y(steps * directions * batch * hidden, 0.5f), last(directions * batch * hidden, 0.5f);
    std::vector<float> expected(y.size()), end(last.size());
    gru.run({x.data(), steps, batch, with_bias ? bias.data() : nullptr, run.with_start ? start.data() : nullptr,
             run.given_lengths(), y.data(), last.data()},
            serial_threads(run.threads));
    for (std::size_t d = 0; d < directions; ++d) {
      for (std::size_t b = 0; b < batch; ++b) {
        const std::size_t at = (d * batch + b) * hidden, length = run.length(b);
        std::vector<double> state = first_state(start, at, hidden, run.with_start);
        for (std::size_t n = 0; n < length; ++n) {
          const std::size_t t = shape.backward[d] != 0 ? length - 1 - n : n;
          const float* input = x.data() + ((t * batch + b) * directions + d) * 3 * hidden;
          const float* own_bias = with_bias ? bias.data() + d * hidden : nullptr;
          state = next({{matrix, d * 3 * hidden, hidden, input}, own_bias, shape.reset_after != 0}, state);
          keep(state, &expected, ((t * directions + d) * batch + b) * hidden);
        }
        if (run.with_lengths && length == 0) std::fill(state.begin(), state.end(), 0.0);
        keep(state, &end, at);
      }
    }
    check("states", y, expected, 1e-4f);
    check("last states", last, end, 1e-4f);
    if (bytes.rest() <= 0) break;
  }
  return 0;
}
