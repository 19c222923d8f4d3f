// The recurrent half of a GRU: its inputs arrive multiplied, its own state is multiplied with sparse weights here.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "matmul.h"
#include "threads.h"

namespace rigl {

struct GruCall {
  const float* x;  // [steps][batch][3 * size]: update, reset and new, with the biases that need no reset
  std::size_t steps, batch;
  const float* bias;     // [size], added to the new state before it is reset; or none
  const float* initial;  // [batch][size], or none: zeros
  float* y;              // [steps][batch][size]
  float* last;           // [batch][size], or none
};

class SparseGru {
 public:
  // The matrix is [3 * size][size].
  SparseGru(SparseMatrix matrix, const KernelTable& kernels) : product_(std::move(matrix), kernels), kernels_(kernels) {}

  std::size_t size() const { return product_.matrix().columns; }
  const SparseMatrix& matrix() const { return product_.matrix(); }
  void run(const GruCall& call, const Threads& threads);

 private:
  SparseMatMul product_;
  const KernelTable& kernels_;
};

}  // namespace rigl
