// Sparse weights times activations: y[b][m] = clip(bias[m] + sum over k of w[m][k] * x[b][k]).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "packed.h"
#include "plan.h"
#include "threads.h"

namespace rigl {

struct MatMulCall {
  const float* x;
  std::size_t batch;
  const float* bias;  // or none
  float* y;
  bool x_by_column, y_by_column;  // [features][batch] instead of [batch][features]
  Clip clip;
};

class SparseMatMul {
 public:
  SparseMatMul(SparseMatrix matrix, const KernelTable& kernels) : matrix_(std::move(matrix)), kernels_(kernels) {}

  void run(const MatMulCall& call, const Threads& threads);
  const SparseMatrix& matrix() const { return matrix_; }

 private:
  struct Plan {
    int width;
    std::uint32_t groups;
    TilePlan tiles;
  };

  double nanoseconds(std::size_t batch) const;
  void run_vector(const MatMulCall& call, const Threads& threads);
  void run_tiles(const MatMulCall& call, const Threads& threads);
  std::shared_ptr<const SlicePlan> slices(std::uint32_t groups);
  std::shared_ptr<const Plan> tiles(int width, std::uint32_t groups);

  SparseMatrix matrix_;
  const KernelTable& kernels_;
  std::mutex mutex_;
  std::shared_ptr<const SlicePlan> slices_;
  std::vector<std::shared_ptr<const Plan>> tiles_;
};

}  // namespace rigl
