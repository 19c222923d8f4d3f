#include "gru.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace rigl {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::unique_ptr<SparseMatMul> product_of(const SparseMatrix& matrix, std::size_t begin, std::size_t end,
                                         const KernelTable& kernels) {
  SparseMatrix part;
  part.rows = static_cast<std::uint32_t>(end - begin);
  part.columns = matrix.columns;
  const std::size_t first = matrix.starts[begin], last = matrix.starts[end];
  for (std::size_t row = begin; row <= end; ++row) part.starts.push_back(matrix.starts[row] - first);
  part.places.assign(matrix.places.begin() + static_cast<std::ptrdiff_t>(first),
                     matrix.places.begin() + static_cast<std::ptrdiff_t>(last));
  part.values.assign(matrix.values.begin() + static_cast<std::ptrdiff_t>(first),
                     matrix.values.begin() + static_cast<std::ptrdiff_t>(last));
  return std::make_unique<SparseMatMul>(std::move(part), kernels);
}

void multiply(SparseMatMul& product, const float* x, std::size_t batch, float* y, const Threads& threads) {
  product.run({x, batch, nullptr, y, false, false, {-kInfinity, kInfinity}}, threads);
}

}  // namespace

std::string check_gru(const SparseMatrix& matrix, const GruShape& shape) {
  if (shape.directions != 1 && shape.directions != 2) return "a GRU must have one direction or two";
  const std::uint64_t rows = static_cast<std::uint64_t>(shape.directions) * 3 * matrix.columns;
  return matrix.rows == rows ? "" : "the packed weights of a GRU must have three rows for each column and direction";
}

SparseGru::SparseGru(const SparseMatrix& matrix, const GruShape& shape, const KernelTable& kernels)
    : size_(matrix.columns), kernels_(kernels) {
  for (std::int32_t d = 0; d < shape.directions; ++d) {
    const std::size_t begin = static_cast<std::size_t>(d) * 3 * size_, end = begin + 3 * size_;
    const std::size_t cut = shape.reset_after != 0 ? end : begin + 2 * size_;
    directions_.push_back({shape.backward[d] != 0, product_of(matrix, begin, cut, kernels),
                           cut == end ? nullptr : product_of(matrix, cut, end, kernels)});
  }
}

void SparseGru::run(const GruCall& call, const Threads& threads) {
  if (call.batch == 0) return;
  for (std::size_t d = 0; d < directions(); ++d) run_direction(call, d, threads);
}

void SparseGru::run_direction(const GruCall& call, std::size_t number, const Threads& threads) {
  const Direction& mine = directions_[number];
  const std::size_t state = call.batch * size_;
  static thread_local Buffer kept;
  float* held = kept.floats(state);  // the state where it cannot be read from the output
  if (call.initial == nullptr) {
    std::fill(held, held + state, 0.0f);
  } else {
    std::memcpy(held, call.initial + number * state, state * sizeof(float));
  }
  const float* before = held;
  for (std::size_t step = 0; step < call.steps; ++step) {
    const std::size_t t = mine.backward ? call.steps - 1 - step : step;
    const float* x = call.x + (t * call.batch * directions() + number) * 3 * size_;
    float* after = call.y + (t * directions() + number) * state;
    run_step(mine, {x, call.batch, call.bias == nullptr ? nullptr : call.bias + number * size_, before, after}, threads);
    if (call.lengths == nullptr) {
      before = after;
      continue;
    }
    // Beyond its length a sample has no output; forward its state stays after its end, backward before it.
    for (std::size_t b = 0; b < call.batch; ++b) {
      float* row = after + b * size_;
      if (t < static_cast<std::size_t>(call.lengths[b])) {
        std::memcpy(held + b * size_, row, size_ * sizeof(float));
      } else {
        std::fill(row, row + size_, 0.0f);
      }
    }
  }
  if (call.last == nullptr) return;
  float* last = call.last + number * state;
  std::memcpy(last, before, state * sizeof(float));
  for (std::size_t b = 0; call.lengths != nullptr && b < call.batch; ++b) {
    // As ONNX Runtime has it: a sample without a step ends with zeros, whatever it began with.
    if (call.lengths[b] == 0) std::fill(last + b * size_, last + (b + 1) * size_, 0.0f);
  }
}

void SparseGru::run_step(const Direction& mine, const Step& step, const Threads& threads) {
  static thread_local Buffer multiplied, reset, renewed;
  const std::size_t pitch = mine.fresh ? 2 * size_ : 3 * size_;
  float* gates = multiplied.floats(step.batch * pitch);
  multiply(*mine.gates, step.before, step.batch, gates, threads);
  const auto task_of = [&](std::size_t b, const float* fresh, float* after) {
    const float* x = step.x + b * directions() * 3 * size_;
    return GateTask{x, gates + b * pitch, fresh, step.bias, step.before + b * size_, after + b * size_, size_};
  };
  if (!mine.fresh) {
    for (std::size_t b = 0; b < step.batch; ++b) {
      kernels_.gru_gates(task_of(b, gates + b * pitch + 2 * size_, step.after));
    }
    return;
  }
  float *through = reset.floats(step.batch * size_), *fresh = renewed.floats(step.batch * size_);
  for (std::size_t b = 0; b < step.batch; ++b) kernels_.gru_reset(task_of(b, nullptr, through));
  multiply(*mine.fresh, through, step.batch, fresh, threads);
  for (std::size_t b = 0; b < step.batch; ++b) kernels_.gru_renew(task_of(b, fresh + b * size_, step.after));
}

}  // namespace rigl
