#include "gru.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace rigl {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::unique_ptr<SparseMatMul> product_of(const SparseMatrix& matrix, std::size_t begin, std::size_t end,
                                         const KernelTable& kernels) {
  const auto part = [begin, end](const SparseMatrix& all) { return rows_of(all, begin, end); };
  return std::make_unique<SparseMatMul>(StoredMatrix(matrix, part), kernels);
}

void multiply(SparseMatMul& product, const float* x, std::size_t batch, float* y, const Threads& threads) {
  product.run({x, batch, nullptr, y, false, false, {-kInfinity, kInfinity}}, threads);
}

}  // namespace

std::string check_gru(const SparseMatrix& matrix, const GruShape& shape) {
  if (shape.directions != 1 && shape.directions != 2) return "GRU: expected 1 or 2 directions";
  const std::uint64_t rows = static_cast<std::uint64_t>(shape.directions) * 3 * matrix.columns;
  return matrix.rows == rows ? "" : "GRU: expected packed weights with three rows per column and direction";
}

SparseGru::SparseGru(const SparseMatrix& matrix, const GruShape& shape, const KernelTable& kernels)
    : size_(matrix.columns), kernels_(kernels) {
  for (std::int32_t d = 0; d < shape.directions; ++d) {
    const std::size_t begin = static_cast<std::size_t>(d) * 3 * size_, end = begin + 3 * size_;
    const std::size_t split = shape.reset_after != 0 ? end : begin + 2 * size_;
    directions_.push_back({shape.backward[d] != 0, product_of(matrix, begin, split, kernels),
                           split == end ? nullptr : product_of(matrix, split, end, kernels)});
  }
}

void SparseGru::run(const GruCall& call, const Threads& threads) {
  if (call.batch == 0) return;
  for (std::size_t d = 0; d < directions(); ++d) run_direction(call, d, threads);
}

void SparseGru::run_direction(const GruCall& call, std::size_t index, const Threads& threads) {
  const Direction& direction = directions_[index];
  const std::size_t state = call.batch * size_;
  static thread_local Buffer buffer;
  float* state_buffer = buffer.reserve(state);  // the previous state, where the output does not hold it
  if (call.initial == nullptr) {
    std::fill(state_buffer, state_buffer + state, 0.0f);
  } else {
    std::memcpy(state_buffer, call.initial + index * state, state * sizeof(float));
  }
  const float* prev = state_buffer;
  for (std::size_t step = 0; step < call.steps; ++step) {
    const std::size_t t = direction.backward ? call.steps - 1 - step : step;
    const float* x = call.x + (t * call.batch * directions() + index) * 3 * size_;
    float* next = call.y + (t * directions() + index) * state;
    run_step(direction, {x, call.batch, call.bias == nullptr ? nullptr : call.bias + index * size_, prev, next},
             threads);
    if (call.lengths == nullptr) {
      prev = next;
      continue;
    }
    // Past its length a sample has no output, and its state does not change.
    for (std::size_t b = 0; b < call.batch; ++b) {
      float* row = next + b * size_;
      if (t < static_cast<std::size_t>(call.lengths[b])) {
        std::memcpy(state_buffer + b * size_, row, size_ * sizeof(float));
      } else {
        std::fill(row, row + size_, 0.0f);
      }
    }
  }
  if (call.last == nullptr) return;
  float* last = call.last + index * state;
  std::memcpy(last, prev, state * sizeof(float));
  for (std::size_t b = 0; call.lengths != nullptr && b < call.batch; ++b) {
    // As in ONNX Runtime: a sample of length 0 ends with zeros, whatever its initial state.
    if (call.lengths[b] == 0) std::fill(last + b * size_, last + (b + 1) * size_, 0.0f);
  }
}

void SparseGru::run_step(const Direction& direction, const Step& step, const Threads& threads) {
  static thread_local Buffer gate_buffer, reset_buffer, candidate_buffer;
  const std::size_t pitch = direction.candidate ? 2 * size_ : 3 * size_;
  float* gates = gate_buffer.reserve(step.batch * pitch);
  multiply(*direction.gates, step.prev, step.batch, gates, threads);
  const auto task_of = [&](std::size_t b, const float* candidate, float* next) {
    const float* x = step.x + b * directions() * 3 * size_;
    return GateTask{x, gates + b * pitch, candidate, step.bias, step.prev + b * size_, next + b * size_, size_};
  };
  if (!direction.candidate) {
    for (std::size_t b = 0; b < step.batch; ++b) {
      kernels_.gru_step(task_of(b, gates + b * pitch + 2 * size_, step.next));
    }
    return;
  }
  float *reset = reset_buffer.reserve(step.batch * size_), *candidate = candidate_buffer.reserve(step.batch * size_);
  for (std::size_t b = 0; b < step.batch; ++b) kernels_.gru_reset_state(task_of(b, nullptr, reset));
  multiply(*direction.candidate, reset, step.batch, candidate, threads);
  for (std::size_t b = 0; b < step.batch; ++b) kernels_.gru_update_state(task_of(b, candidate + b * size_, step.next));
}

}  // namespace rigl
