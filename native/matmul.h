// Sparse matrix product: y[b][m] = clip(bias[m] + sum over k of w[m][k] * x[b][k]).
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
#include "vector_plan.h"

namespace rigl {

struct MatMulCall {
  const float* x;
  std::size_t batch;
  const float* bias;  // [rows], or null
  float* y;
  bool x_by_column, y_by_column;  // in tiles of columns, see tiles.h, instead of [batch][features]
  Clip clip;
  Activation activation = Activation::kNone;
};

class SparseMatMul {
 public:
  SparseMatMul(StoredMatrix matrix, const KernelTable& kernels) : matrix_(std::move(matrix)), kernels_(kernels) {}

  void run(const MatMulCall& call, const Threads& threads);
  const StoredMatrix& matrix() const { return matrix_; }

 private:
  struct TilesOfWidth {
    int width;
    std::uint32_t groups;
    TilePlan plan;
  };
  struct SlicesOfGroups {
    std::uint32_t groups;
    SlicePlan plan;
    WindowPlan windows;  // instead of the slices, where they are faster
  };

  bool looks_up() const;  // multiply a single vector by windows instead of slices
  double estimate_ns(std::size_t batch) const;
  void run_vector(const MatMulCall& call, const Threads& threads);
  void run_windows(const MatMulCall& call, const WindowPlan& plan, const Threads& threads) const;
  void run_tiles(const MatMulCall& call, const Threads& threads);
  std::shared_ptr<const SlicesOfGroups> slices(std::uint32_t groups);
  std::shared_ptr<const TilesOfWidth> tiles(int width, std::uint32_t groups);

  StoredMatrix matrix_;
  const KernelTable& kernels_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const SlicesOfGroups>> slices_;
  std::vector<std::shared_ptr<const TilesOfWidth>> tiles_;
};

}  // namespace rigl
