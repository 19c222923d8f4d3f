// The innermost loops. They are compiled once for each set of instructions, so this header and `kernels_body.h` use
// nothing from the C++ library: the linker could otherwise keep a copy that another processor cannot run.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rigl {

// The widest tile of columns that a kernel takes at once: so many vectors of accumulators.
constexpr int kMostVectors = 8;

struct Clip {
  float low, high;
};

// A row of a block: where its results go, and how many of the block's non-zeros are its own.
struct RowEntry {
  uint32_t row;
  uint32_t count;
};

// The non-zeros of some rows in some columns, row by row. `columns` counts from the first column of the block.
struct BlockView {
  const RowEntry* rows;
  size_t row_count;
  const uint16_t* columns;
  const float* values;
};

// Multiply a block with a tile of activations, [columns of the block][width], and add to the sums of earlier blocks.
struct TileTask {
  const float* x;
  size_t x_pitch;  // in floats, as all others
  float* sums;     // [rows][sums_pitch], between the first and the last block
  size_t sums_pitch;
  int width;  // columns of the tile
  bool first, last;
  const float* bias;      // by row, or none
  const float* residual;  // as y, or none
  float* y;
  size_t y_pitch;
  Clip clip;
};

// Eight (or LANES) rows at a time, their non-zeros interleaved; for a single column of activations.
struct SliceView {
  const uint32_t* lengths;  // non-zeros of the longest row of each slice
  size_t slice_count;
  const uint16_t* columns;
  const float* values;
  const uint32_t* rows;  // where each row of each slice goes; those beyond the end are `row_limit`
  uint32_t row_limit;
};

struct VectorTask {
  const float* x;  // with a zero behind its last entry, for the holes of a slice
  float* y;
  bool first, last;
  const float* bias;
  Clip clip;
};

// How the rows of a tile are read from planes of pixels: one shift for each place of the filter.
struct ShiftTask {
  const float* planes;
  ptrdiff_t plane_limit;  // floats that may be read, from `planes` on; before it, none may
  ptrdiff_t plane_pitch;  // from channel to channel
  const ptrdiff_t* shifts;
  const int32_t* masks;        // [taps][width rounded up to vectors]: -1 within the image, 0 outside
  const uint8_t* mask_needed;  // [taps]
  int width;
};

// Where a column of the weights finds its activations: a channel, and a place of the filter.
struct Source {
  uint32_t channel;
  uint32_t tap;
};

// One step of a GRU for one sample, after its products.
struct GateTask {
  const float* input;  // update, reset, new
  const float* state;  // update, reset
  const float* fresh;  // the new state's own product
  const float* bias;  // of the new state, or none
  const float* before;
  float* after;
  size_t size;
};

// A column of a filter: where the pixels under each of its rows lie, and which of its sums count.
struct DepthwiseColumn {
  const ptrdiff_t* offsets;  // [rows], from `planes` on
  const float* weights;      // [rows]
  const int32_t* mask;       // by pixel: -1 within the image, 0 beside it; or none
};

// One channel, one filter. Pixel number p of the output reads number p + offset of the planes. Whole vectors are read.
struct DepthwiseTask {
  const float* planes;
  const DepthwiseColumn* filter;
  int columns, rows;   // of the filter
  size_t mask_period;  // masks repeat after so many pixels
  float bias;
  Clip clip;
  float* y;
  size_t pixels;  // of the output
};

struct KernelTable {
  const char* name;
  int lanes;
  void (*multiply_tile)(const BlockView&, const TileTask&);
  void (*multiply_vector)(const SliceView&, const VectorTask&);
  void (*pack_shifted)(const ShiftTask&, const Source* sources, size_t count, float* out, size_t pitch);
  // out[c][r] = in[r][c]
  void (*transpose)(const float* in, size_t in_pitch, size_t rows, size_t columns, float* out, size_t out_pitch);
  // out[i] = in[2 * i], out[i] = in[2 * i + 1]
  void (*split_pairs)(const float* in, size_t pairs, float* even, float* odd);
  // The whole step, where the new state's product is reset afterwards.
  void (*gru_gates)(const GateTask&);
  // Where it is reset before: first the state that is to be multiplied, then, after the product, the rest.
  void (*gru_reset)(const GateTask&);
  void (*gru_renew)(const GateTask&);
  void (*filter_channel)(const DepthwiseTask&);
};

const KernelTable* portable_kernels();
const KernelTable* avx2_kernels();    // none where the compiler or the processor lacks them
const KernelTable* avx512_kernels();  // likewise

}  // namespace rigl
