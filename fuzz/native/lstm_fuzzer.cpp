// The recurrent half of an LSTM or a plain RNN, in both directions, against the equations of the ONNX standard.

#include <algorithm>

#include "../../native/lstm.h"
#include "harness.h"

using namespace harness;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The sum of the products of a gate: of the input, and of one row of the weights with a state.
double gate(const rigl::SparseMatrix& matrix, std::size_t row, float x, const std::vector<double>& state) {
  double sum = static_cast<double>(x);
  for (std::size_t k = matrix.row_ptr[row]; k < matrix.row_ptr[row + 1]; ++k) {
    sum += static_cast<double>(matrix.values[k]) * state[matrix.col_idx[k]];
  }
  return sum;
}

struct Step {
  const rigl::SparseMatrix& matrix;
  std::size_t first, size;  // first row of this direction
  const float* x;
  bool with_cell;
};

void run(const Step& step, std::vector<double>* state, std::vector<double>* cell) {
  const std::vector<double> before = *state;
  for (std::size_t i = 0; i < step.size; ++i) {
    const auto part = [&](std::size_t index) {
      return gate(step.matrix, step.first + index * step.size + i, step.x[index * step.size + i], before);
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
  shape.directions = static_cast<std::int32_t>(bytes.range(0, 3));
  for (std::int32_t& each : shape.backward) each = bytes.flag();
  shape.gates = bytes.flag() ? 4 : static_cast<std::int32_t>(bytes.range(0, 2));
  const std::size_t hidden = static_cast<std::size_t>(bytes.range(1, 40));
  const std::size_t directions = static_cast<std::size_t>(std::max(shape.directions, 1));
  const std::size_t gates = static_cast<std::size_t>(std::max(shape.gates, 1)), pitch = gates * hidden;
  rigl::SparseMatrix matrix = sparse_matrix(&integers, static_cast<std::uint32_t>(directions * pitch),
                                            static_cast<std::uint32_t>(hidden), bytes.byte() % 60);
  for (float& each : matrix.values) each /= 32;  // keeps rounding errors from growing over the steps
  const bool fits = (shape.directions == 1 || shape.directions == 2) && (shape.gates == 1 || shape.gates == 4);
  if (rigl::check_lstm(matrix, shape).empty() != fits) std::abort();
  if (!fits) return 0;
  const bool with_cell = gates == 4;
  rigl::SparseLstm lstm(matrix, shape, table);
  for (int turn = 0; turn < 3; ++turn) {
    const std::size_t steps = static_cast<std::size_t>(bytes.range(0, 5)),
                      batch = static_cast<std::size_t>(bytes.range(0, 9));
    const int threads = 1 + static_cast<int>(bytes.byte() % 4);
    const bool with_start = bytes.flag(), with_lengths = bytes.flag();
    std::vector<float> x = integers.numbers(steps * batch * directions * pitch);
    std::vector<float> start = integers.numbers(directions * batch * hidden), cells = start;
    for (float& each : x) each /= 4;
    for (float& each : start) each /= 8;
    std::vector<std::int32_t> lengths(batch);
    for (std::int32_t& each : lengths)
      each = static_cast<std::int32_t>(bytes.range(0, static_cast<std::int64_t>(steps)));
    std::vector<float> y(steps * directions * batch * hidden, 0.5f), last(directions * batch * hidden, 0.5f);
    std::vector<float> last_cell(last.size(), 0.5f), expected(y.size()), end(last.size()), end_cell(last.size());
    lstm.run({x.data(), steps, batch, with_start ? start.data() : nullptr, with_start ? cells.data() : nullptr,
              with_lengths ? lengths.data() : nullptr, y.data(), last.data(), with_cell ? last_cell.data() : nullptr},
             serial_threads(threads));
    for (std::size_t d = 0; d < directions; ++d) {
      for (std::size_t b = 0; b < batch; ++b) {
        const std::size_t at = (d * batch + b) * hidden;
        std::vector<double> state(hidden), cell(hidden);
        for (std::size_t i = 0; i < hidden && with_start; ++i) {
          state[i] = static_cast<double>(start[at + i]);
          cell[i] = static_cast<double>(cells[at + i]);
        }
        const std::size_t length = with_lengths ? static_cast<std::size_t>(lengths[b]) : steps;
        for (std::size_t n = 0; n < length; ++n) {
          const std::size_t t = shape.backward[d] != 0 ? length - 1 - n : n;
          run({matrix, d * pitch, hidden, x.data() + ((t * batch + b) * directions + d) * pitch, with_cell}, &state,
              &cell);
          for (std::size_t i = 0; i < hidden; ++i)
            expected[((t * directions + d) * batch + b) * hidden + i] = static_cast<float>(state[i]);
        }
        for (std::size_t i = 0; i < hidden && !(with_lengths && length == 0); ++i) {
          end[at + i] = static_cast<float>(state[i]);
          end_cell[at + i] = static_cast<float>(cell[i]);
        }
      }
    }
    check("states", y, expected, 1e-4f);
    if (batch > 0) check("last states", last, end, 1e-4f);
    if (batch > 0 && with_cell) check("last cells", last_cell, end_cell, 1e-3f);
    if (bytes.rest() <= 0) break;
  }
  return 0;
}
