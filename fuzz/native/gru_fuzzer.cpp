// The recurrent half of a GRU, with the reset gate before and after the product and in both directions, against the
// equations of the ONNX standard.

#include <algorithm>

#include "../../native/gru.h"
#include "harness.h"

using namespace harness;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The product of one row of the weights with a state.
double dot(const rigl::SparseMatrix& matrix, std::size_t row, const std::vector<double>& state) {
  double sum = 0;
  for (std::size_t k = matrix.row_ptr[row]; k < matrix.row_ptr[row + 1]; ++k) {
    sum += static_cast<double>(matrix.values[k]) * state[matrix.col_idx[k]];
  }
  return sum;
}

struct Step {
  const rigl::SparseMatrix& matrix;
  std::size_t first, size;  // first row of this direction
  const float* x;
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
  shape.directions = static_cast<std::int32_t>(bytes.range(0, 3));
  for (std::int32_t& each : shape.backward) each = bytes.flag();
  shape.reset_after = bytes.flag();
  const std::size_t hidden = static_cast<std::size_t>(bytes.range(1, 40));
  const std::size_t directions = static_cast<std::size_t>(std::max(shape.directions, 1));
  rigl::SparseMatrix matrix = sparse_matrix(&integers, static_cast<std::uint32_t>(directions * 3 * hidden),
                                            static_cast<std::uint32_t>(hidden), bytes.byte() % 60);
  for (float& each : matrix.values) each /= 32;  // keeps rounding errors from growing over the steps
  const bool fits = shape.directions == 1 || shape.directions == 2;
  if (rigl::check_gru(matrix, shape).empty() != fits) std::abort();
  if (!fits) return 0;
  rigl::SparseGru gru(matrix, shape, table);
  for (int run = 0; run < 3; ++run) {
    const std::size_t steps = static_cast<std::size_t>(bytes.range(0, 5)),
                      batch = static_cast<std::size_t>(bytes.range(0, 9));
    const int threads = 1 + static_cast<int>(bytes.byte() % 4);
    const bool with_bias = bytes.flag() && shape.reset_after != 0, with_start = bytes.flag(),
               with_lengths = bytes.flag();
    std::vector<float> x = integers.numbers(steps * batch * directions * 3 * hidden),
                       bias = integers.numbers(directions * hidden);
    std::vector<float> start = integers.numbers(directions * batch * hidden);
    for (float& each : x) each /= 4;
    for (float& each : start) each /= 8;
    std::vector<std::int32_t> lengths(batch);
    for (std::int32_t& each : lengths)
      each = static_cast<std::int32_t>(bytes.range(0, static_cast<std::int64_t>(steps)));
    std::vector<float> y(steps * directions * batch * hidden, 0.5f), last(directions * batch * hidden, 0.5f);
    std::vector<float> expected(y.size()), end(last.size());
    gru.run({x.data(), steps, batch, with_bias ? bias.data() : nullptr, with_start ? start.data() : nullptr,
             with_lengths ? lengths.data() : nullptr, y.data(), last.data()},
            serial_threads(threads));
    for (std::size_t d = 0; d < directions; ++d) {
      for (std::size_t b = 0; b < batch; ++b) {
        std::vector<double> state(hidden);
        for (std::size_t i = 0; i < hidden && with_start; ++i)
          state[i] = static_cast<double>(start[(d * batch + b) * hidden + i]);
        const std::size_t length = with_lengths ? static_cast<std::size_t>(lengths[b]) : steps;
        for (std::size_t n = 0; n < length; ++n) {
          const std::size_t t = shape.backward[d] != 0 ? length - 1 - n : n;
          const float* input = x.data() + ((t * batch + b) * directions + d) * 3 * hidden;
          state = next({matrix, d * 3 * hidden, hidden, input, with_bias ? bias.data() + d * hidden : nullptr,
                        shape.reset_after != 0},
                       state);
          for (std::size_t i = 0; i < hidden; ++i)
            expected[((t * directions + d) * batch + b) * hidden + i] = static_cast<float>(state[i]);
        }
        if (with_lengths && length == 0) std::fill(state.begin(), state.end(), 0.0);
        for (std::size_t i = 0; i < hidden; ++i) end[(d * batch + b) * hidden + i] = static_cast<float>(state[i]);
      }
    }
    check("states", y, expected, 1e-4f);
    check("last states", last, end, 1e-4f);
    if (bytes.rest() <= 0) break;
  }
  return 0;
}
