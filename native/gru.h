// The recurrent half of a GRU: its inputs arrive multiplied, its own state is multiplied with sparse weights here.
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
  std::int32_t directions = 1;   // one or two
  std::int32_t backward[2] = {0, 0};  // for each direction: whether it begins at the end
  std::int32_t reset_after = 1;  // whether the state is reset after its product (as torch does) or before it
};

struct GruCall {
  const float* x;  // [steps][batch][directions][3 * size]: update, reset and new, with the biases that need no reset
  std::size_t steps, batch;
  const float* bias;            // [directions][size], added to the new state before it is reset; or none
  const float* initial;         // [directions][batch][size], or none: zeros
  const std::int32_t* lengths;  // [batch], each up to `steps`; or none: all steps
  float* y;                     // [steps][directions][batch][size], zeros beyond the length of a sample
  float* last;                  // [directions][batch][size], or none
};

// Says what is wrong with the weights of a GRU, or nothing.
std::string check_gru(const SparseMatrix& matrix, const GruShape& shape);

class SparseGru {
 public:
  // The matrix is [directions * 3 * size][size], as `check_gru` confirms.
  SparseGru(const SparseMatrix& matrix, const GruShape& shape, const KernelTable& kernels);

  std::size_t size() const { return size_; }
  std::size_t directions() const { return directions_.size(); }
  void run(const GruCall& call, const Threads& threads);

 private:
  struct Direction {
    bool backward;
    std::unique_ptr<SparseMatMul> gates;  // of all three, or of update and reset
    std::unique_ptr<SparseMatMul> fresh;  // of the new state, where it is reset first; or none
  };

  struct Step {
    const float* x;  // of the first sample; those of others are all directions apart
    std::size_t batch;
    const float* bias;  // or none
    const float* before;
    float* after;
  };

  void run_direction(const GruCall& call, std::size_t number, const Threads& threads);
  void run_step(const Direction& mine, const Step& step, const Threads& threads);

  std::size_t size_;
  const KernelTable& kernels_;
  std::vector<Direction> directions_;
};

}  // namespace rigl
