// The recurrent half of a GRU: takes the products of its inputs, and multiplies its state by sparse weights.
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

struct GruShape {
  std::int32_t directions = 1;        // 1 or 2
  std::int32_t backward[2] = {0, 0};  // per direction: runs from the last step to the first
  std::int32_t reset_after = 1;       // reset gate after (as in torch) or before the product of the state
};

struct GruCall {
  const float* x;  // [steps][batch][directions][3 * size]: update, reset and candidate, with the biases the reset gate
                   // does not scale
  std::size_t steps, batch;
  const float* bias;            // [directions][size], of the candidate, scaled by the reset gate; or null
  const float* initial;         // [directions][batch][size], or null for zeros
  const std::int32_t* lengths;  // [batch], each in [0, steps]; or null for all steps
  float* y;                     // [steps][directions][batch][size], zero past the length of a sample
  float* last;                  // [directions][batch][size], or null
};

// Returns what is invalid about the weights of a GRU, or an empty string.
std::string check_gru(const SparseMatrix& matrix, const GruShape& shape);

class SparseGru {
 public:
  // The matrix is [directions * 3 * size][size], checked by `check_gru`.
  SparseGru(const SparseMatrix& matrix, const GruShape& shape, const KernelTable& kernels);

  std::size_t size() const { return size_; }
  std::size_t directions() const { return directions_.size(); }
  void run(const GruCall& call, const Threads& threads);

 private:
  struct Direction {
    bool backward;
    std::unique_ptr<SparseMatMul> gates;      // of all three gates, or of update and reset
    std::unique_ptr<SparseMatMul> candidate;  // where the reset gate comes first; or null
  };

  struct Step {
    const float* x;  // of the first sample; samples are all directions apart
    std::size_t batch;
    const float* bias;  // or null
    const float* prev;
    float* next;
  };

  void run_direction(const GruCall& call, std::size_t index, const Threads& threads);
  void run_step(const Direction& direction, const Step& step, const Threads& threads);

  std::size_t size_;
  const KernelTable& kernels_;
  std::vector<Direction> directions_;
};

}  // namespace rigl
