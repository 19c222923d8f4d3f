// The recurrent half of an LSTM or a plain RNN: takes the products of its inputs, and multiplies its state by sparse
// weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "matmul.h"
#include "threads.h"

namespace rigl {

struct LstmShape {
  std::int32_t directions = 1;                // 1 or 2
  std::int32_t backward[2] = {0, 0};          // per direction: runs from the last step to the first
  std::int32_t gates = 4;                     // 4: input, output, forget and cell; 1: a plain RNN
  Activation activation = Activation::kTanh;  // of a plain RNN
};

struct LstmCall {
  const float* x;  // [steps][batch][directions][gates * size], with all biases
  std::size_t steps, batch;
  const float* initial;         // state [directions][batch][size], or null for zeros
  const float* initial_cell;    // the same for the cells of an LSTM
  const std::int32_t* lengths;  // [batch], each in [0, steps]; or null for all steps
  float* y;                     // [steps][directions][batch][size], zero past the length of a sample
  float* last;                  // [directions][batch][size]
  float* last_cell;             // the same; null for a plain RNN
};

// Returns what is invalid about the weights, or an empty string.
std::string check_lstm(const SparseMatrix& matrix, const LstmShape& shape);

class SparseLstm {
 public:
  // The matrix is [directions * gates * size][size], checked by `check_lstm`.
  SparseLstm(const SparseMatrix& matrix, const LstmShape& shape, const KernelTable& kernels);

  std::size_t size() const { return size_; }
  std::size_t gates() const { return static_cast<std::size_t>(shape_.gates); }
  std::size_t directions() const { return products_.size(); }
  void run(const LstmCall& call, const Threads& threads);

 private:
  void run_direction(const LstmCall& call, std::size_t index, const Threads& threads);
  void run_step(const float* x, const float* products, std::size_t batch, float* cell, float* next) const;

  std::size_t size_;
  LstmShape shape_;
  const KernelTable& kernels_;
  std::vector<std::unique_ptr<SparseMatMul>> products_;  // per direction
};

}  // namespace rigl
