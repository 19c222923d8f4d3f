// Shared by the harnesses of recurrent layers: what is drawn for a run, and the products of its equations.
#pragma once

#include <vector>

#include "harness.h"

namespace harness {

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The product of one row of the weights with a state.
inline double dot(const rigl::SparseMatrix& matrix, std::size_t row, const std::vector<double>& state) {
  double sum = 0;
  for (std::size_t k = matrix.row_ptr[row]; k < matrix.row_ptr[row + 1]; ++k) {
    sum += static_cast<double>(matrix.values[k]) * state[matrix.col_idx[k]];
  }
  return sum;
}

// What the equations of a step read: weights, the first row of a direction, and the products of the input.
struct Gates {
  const rigl::SparseMatrix& matrix;
  std::size_t first, size;
  const float* x;
};

// A shape with one direction, two, or a number that is refused.
template <typename Shape>
void draw_directions(Bytes* bytes, Shape* shape) {
  shape->directions = static_cast<std::int32_t>(bytes->range(0, 3));
  for (std::int32_t& each : shape->backward) each = bytes->flag();
}

inline rigl::SparseMatrix state_weights(Bytes* bytes, Integers* integers, std::size_t rows, std::size_t hidden) {
  rigl::SparseMatrix matrix =
      sparse_matrix(integers, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(hidden), bytes->byte() % 60);
  for (float& each : matrix.values) each /= 32;  // keeps rounding errors from growing over the steps
  return matrix;
}

// The sizes and optional inputs of a run.
struct Sequences {
  std::size_t steps, batch;
  int threads;
  bool with_start, with_lengths;
  std::vector<std::int32_t> lengths = {};

  explicit Sequences(Bytes* bytes)
      : steps(static_cast<std::size_t>(bytes->range(0, 5))),
        batch(static_cast<std::size_t>(bytes->range(0, 9))),
        threads(1 + static_cast<int>(bytes->byte() % 4)),
        with_start(bytes->flag()),
        with_lengths(bytes->flag()) {
    lengths.resize(batch);
    for (std::int32_t& each : lengths)
      each = static_cast<std::int32_t>(bytes->range(0, static_cast<std::int64_t>(steps)));
  }
  const std::int32_t* given_lengths() const { return with_lengths ? lengths.data() : nullptr; }
  std::size_t length(std::size_t sample) const {
    return with_lengths ? static_cast<std::size_t>(lengths[sample]) : steps;
  }
};

// Small integers over a power of two.
inline std::vector<float> fractions(Integers* integers, std::size_t count, float divisor) {
  std::vector<float> found = integers->numbers(count);
  for (float& each : found) each /= divisor;
  return found;
}

// A state of one sample and direction, or zeros.
inline std::vector<double> first_state(const std::vector<float>& start, std::size_t at, std::size_t hidden,
                                       bool given) {
  std::vector<double> state(hidden);
  for (std::size_t i = 0; i < hidden && given; ++i) state[i] = static_cast<double>(start[at + i]);
  return state;
}

inline void keep(const std::vector<double>& state, std::vector<float>* to, std::size_t at) {
  for (std::size_t i = 0; i < state.size(); ++i) (*to)[at + i] = static_cast<float>(state[i]);
}

}  // namespace harness
