// The recurrent half of an LSTM or a plain RNN, in both directions, against the equations of the ONNX standard.

#include <algorithm>

#include "../../native/lstm.h"
#include "recurrent.h"

using namespace harness;

namespace {

struct Step : Gates {
  bool with_cell;
};

void advance(const Step& step, std::vector<double>* state, std::vector<double>* cell) {
  const std::vector<double> before = *state;
  for (std::size_t i = 0; i < step.size; ++i) {
    const auto part = [&](std::size_t index) {
      const std::size_t row = index * step.size + i;
      return static_cast<double>(step.x[row]) + dot(step.matrix, step.first + row, before);
    };
    if (!step.with_cell) {
      (*state)[i] = std::tanh(part(0));
      continue;
    }
    (*cell)[i] = sigmoid(part(2)) * (*cell)[i] + sigmoid(part(0)) * std::tanh(part(3));
    (*state)[i] = sigmoid(part(1)) * std::tanh((*cell)[i]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const rigl::KernelTable& table = kernels(bytes.byte());
  Integers integers(bytes.byte());
  rigl::LstmShape shape;
  draw_directions(&bytes, &shape);
  shape.gates = bytes.flag() ? 4 : static_cast<std::int32_t>(bytes.range(0, 2));
  const std::size_t hidden = static_cast<std::size_t>(bytes.range(1, 40));
  const std::size_t directions = static_cast<std::size_t>(std::max(shape.directions, 1));
  const std::size_t gates = static_cast<std::size_t>(std::max(shape.gates, 1)), pitch = gates * hidden;
  const rigl::SparseMatrix matrix = state_weights(&bytes, &integers, directions * pitch, hidden);
  const bool fits = (shape.directions == 1 || shape.directions == 2) && (shape.gates == 1 || shape.gates == 4);
  if (rigl::check_lstm(matrix, shape).empty() != fits) std::abort();
  if (!fits) return 0;
  const bool with_cell = gates == 4;
  rigl::SparseLstm lstm(matrix, shape, table);
  for (int turn = 0; turn < 3; ++turn) {
    const Sequences run(&bytes);
    const std::size_t steps = run.steps, batch = run.batch;
    const std::vector<float> x = fractions(&integers, steps * batch * directions * pitch, 4);
    const std::vector<float> cells = integers.numbers(directions * batch * hidden),
                             start = fractions(&integers, cells.size(), 8);
    std::vector<float> y(steps * directions * batch * hidden, 0.5f), last(directions * batch * hidden, 0.5f);
    std::vector<float> last_cell(last.size(), 0.5f), expected(y.size()), end(last.size()), end_cell(last.size());
    lstm.run({x.data(), steps, batch, run.with_start ? start.data() : nullptr, run.with_start ? cells.data() : nullptr,
              run.given_lengths(), y.data(), last.data(), with_cell ? last_cell.data() : nullptr},
             serial_threads(run.threads));
    for (std::size_t d = 0; d < directions; ++d) {
      for (std::size_t b = 0; b < batch; ++b) {
        const std::size_t at = (d * batch + b) * hidden, length = run.length(b);
        std::vector<double> state = first_state(start, at, hidden, run.with_start);
        std::vector<double> cell = first_state(cells, at, hidden, run.with_start);
        for (std::size_t n = 0; n < length; ++n) {
          const std::size_t t = shape.backward[d] != 0 ? length - 1 - n : n;
          const float* input = x.data() + ((t * batch + b) * directions + d) * pitch;
          advance({{matrix, d * pitch, hidden, input}, with_cell}, &state, &cell);
          keep(state, &expected, ((t * directions + d) * batch + b) * hidden);
        }
        if (run.with_lengths && length == 0) continue;
        keep(state, &end, at);
        keep(cell, &end_cell, at);
      }
    }
    check("states", y, expected, 1e-4f);
    if (batch > 0) check("last states", last, end, 1e-4f);
    if (batch > 0 && with_cell) check("last cells", last_cell, end_cell, 1e-3f);
    if (bytes.rest() <= 0) break;
  }
  return 0;
}
