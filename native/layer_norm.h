// Layer normalization of vectors [rows][size], after adding a residual.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "threads.h"

namespace rigl {

struct LayerNormCall {
  const float* x;
  const float* residual;  // same layout as x, or null
  const float* scale;     // [size]
  const float* bias;      // [size], or null
  float* y;
  float* sum;  // x + residual, or null; may be x or the residual itself
  std::size_t rows, size;
  float epsilon;
  bool x_by_column, residual_by_column, y_by_column, sum_by_column;  // in tiles, see tiles.h
};

void normalize_rows(const LayerNormCall& call, const KernelTable& kernels, const Threads& threads);

}  // namespace rigl
