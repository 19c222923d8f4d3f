// The inner loop of training that inference lacks: products of activations and gradients at the connections alone.
// Compiled once per instruction set, as `kernels.h`.
#pragma once

#include "kernels.h"

namespace rigl {

// The gradient of a block's weights from one tile: sums[j] += x[col_idx[j]] · dy[row of j], over `width` floats. Both
// are followed by zeros, or by finite numbers times zeros, up to a whole vector.
struct SampleTask {
  const float* x;
  size_t x_pitch;
  const float* dy;
  size_t dy_pitch;
  int width;
  float* sums;
};

// Some connections of a convolution, row by row: where each reads in a packed slab, relative to the tile.
struct ConvBlock {
  const RowEntry* rows;
  size_t row_count;
  const uint32_t* offsets;
  const float* values;
};

// The most vectors of a tile of a convolution.
constexpr int kMaxConvVectors = 8;

// Outputs of a convolution that follow each other in a row, accumulated over the blocks of sources.
struct ConvTile {
  const float* x;
  float* acc;  // [rows][vectors], between the first and the last block
  int vectors;
  bool first, last;
  const float* bias;  // per row, or null
  float* y;
  size_t y_pitch, y_step;  // in floats: from row to row, from vector to vector
  int valid, valid_last;   // lanes that are stored of each vector, and of the last
};

// The gradient of a block's weights from a tile of outputs: sums[j] += x[offset of j] · dy[row of j].
struct CorrelationTile {
  const float* x;
  size_t x_row;  // in floats, from one row of pixels to the next
  const float* dy;
  size_t dy_pitch, dy_row;  // from channel to channel, from one row of pixels to the next
  int rows, floats;         // of pixels; in each of these rows
  float* sums;
};

// A channel of a batch normalization in its backward pass. Its output was x · scale + shift.
struct NormRow {
  const float* x;
  const float* dy;
  size_t size;
  float mean, scale, shift;
  bool clipped;  // outputs below zero were clipped: no gradient passes them
};

struct TrainKernels {
  int lanes;
  void (*sample_tile)(const BlockView&, const SampleTask&);
  // Vectors that are `pitch` floats apart, to contiguous ones; those `next` floats behind them are read soon.
  void (*copy_vectors)(const float* from, size_t pitch, size_t count, size_t next, float* to);
  void (*convolve_tile)(const ConvBlock&, const ConvTile&);
  void (*correlate_tile)(const ConvBlock&, const CorrelationTile&);
  // Of x − mean, or of its square.
  double (*sum_distances)(const float* x, size_t size, float mean, bool squared);
  // y = x · scale + shift
  void (*scale_row)(const float* x, size_t size, float scale, float shift, float* y);
  // The sums of the gradient, and of its products with x − mean.
  void (*sum_gradients)(const NormRow&, double* plain, double* weighted);
  // dx = dy · scale − constant − (x − mean) · slope
  void (*spread_gradients)(const NormRow&, float constant, float slope, float* dx);
  // values *= active, which is 0 or 1
  void (*mask)(float* values, const uint8_t* active, size_t count);
};

const TrainKernels* portable_train_kernels();
const TrainKernels* avx2_train_kernels();    // null where the compiler lacks the instructions
const TrainKernels* avx512_train_kernels();  // likewise

}  // namespace rigl
