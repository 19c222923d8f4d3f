#include "lstm.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace rigl {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The initial state of a direction, or zeros.
void start_state(const float* initial, std::size_t offset, std::size_t count, float* state) {
  if (initial == nullptr) {
    std::fill(state, state + count, 0.0f);
  } else {
    std::memcpy(state, initial + offset, count * sizeof(float));
  }
}

// Past its length a sample has no output, and its state and cell are those of its last step.
void keep_ended(const LstmCall& call, std::size_t step, std::size_t size, float* next, float* state, float* cell,
                const float* previous_cell) {
  for (std::size_t b = 0; b < call.batch; ++b) {
    float* row = next + b * size;
    if (call.lengths == nullptr || step < static_cast<std::size_t>(call.lengths[b])) {
      std::memcpy(state + b * size, row, size * sizeof(float));
      continue;
    }
    std::fill(row, row + size, 0.0f);
    if (cell != nullptr) std::memcpy(cell + b * size, previous_cell + b * size, size * sizeof(float));
  }
}

}  // namespace

std::string check_lstm(const SparseMatrix& matrix, const LstmShape& shape) {
  if (shape.directions != 1 && shape.directions != 2) return "LSTM: expected 1 or 2 directions";
  if (shape.gates != 4 && shape.gates != 1) return "LSTM: expected 4 gates, or 1 of a plain RNN";
  const std::uint64_t rows = static_cast<std::uint64_t>(shape.directions * shape.gates) * matrix.columns;
  return matrix.rows == rows ? "" : "LSTM: expected packed weights with a row per gate, column and direction";
}

SparseLstm::SparseLstm(const SparseMatrix& matrix, const LstmShape& shape, const KernelTable& kernels)
    : size_(matrix.columns), shape_(shape), kernels_(kernels) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(shape.directions); ++d) {
    const std::size_t begin = d * gates() * size_, end = begin + gates() * size_;
    const auto part = [begin, end](const SparseMatrix& all) { return rows_of(all, begin, end); };
    products_.push_back(std::make_unique<SparseMatMul>(StoredMatrix(matrix, part), kernels));
  }
}

void SparseLstm::run(const LstmCall& call, const Threads& threads) {
  if (call.batch == 0) return;
  for (std::size_t d = 0; d < directions(); ++d) run_direction(call, d, threads);
}

void SparseLstm::run_direction(const LstmCall& call, std::size_t index, const Threads& threads) {
  static thread_local Buffer state_buffer, cell_buffer, product_buffer, kept_buffer;
  const std::size_t count = call.batch * size_, pitch = gates() * size_;
  const bool with_cell = gates() == 4;
  float* state = state_buffer.reserve(count);
  float* cell = with_cell ? cell_buffer.reserve(count) : nullptr;
  float* products = product_buffer.reserve(call.batch * pitch);
  float* kept = with_cell && call.lengths != nullptr ? kept_buffer.reserve(count) : nullptr;
  start_state(call.initial, index * count, count, state);
  if (with_cell) start_state(call.initial_cell, index * count, count, cell);
  for (std::size_t step = 0; step < call.steps; ++step) {
    const std::size_t t = shape_.backward[index] != 0 ? call.steps - 1 - step : step;
    const float* x = call.x + (t * call.batch * directions() + index) * pitch;
    float* next = call.y + (t * directions() + index) * count;
    products_[index]->run({state, call.batch, nullptr, products, false, false, {-kInfinity, kInfinity}}, threads);
    if (kept != nullptr) std::memcpy(kept, cell, count * sizeof(float));
    run_step(x, products, call.batch, cell, next);
    keep_ended(call, t, size_, next, state, kept == nullptr ? nullptr : cell, kept);
  }
  for (std::size_t b = 0; call.lengths != nullptr && b < call.batch; ++b) {
    // As in ONNX Runtime: a sample of length 0 ends with zeros, whatever its initial state.
    if (call.lengths[b] != 0) continue;
    std::fill(state + b * size_, state + (b + 1) * size_, 0.0f);
    if (with_cell) std::fill(cell + b * size_, cell + (b + 1) * size_, 0.0f);
  }
  std::memcpy(call.last + index * count, state, count * sizeof(float));
  if (with_cell) std::memcpy(call.last_cell + index * count, cell, count * sizeof(float));
}

void SparseLstm::run_step(const float* x, const float* products, std::size_t batch, float* cell, float* next) const {
  const std::size_t pitch = gates() * size_;
  for (std::size_t b = 0; b < batch; ++b, x += directions() * pitch, products += pitch, next += size_) {
    if (gates() == 4) {
      kernels_.lstm_step({x, products, cell + b * size_, next, size_});
      continue;
    }
    for (std::size_t i = 0; i < size_; ++i) next[i] = x[i] + products[i];
    kernels_.activate(shape_.activation, next, 1, size_, 0);
  }
}

}  // namespace rigl
