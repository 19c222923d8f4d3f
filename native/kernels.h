// The interface of the inner loops. They are compiled once per instruction set, so this header and `kernels_body.h`
// include nothing of the C++ library: the linker could otherwise keep a copy that another processor cannot run.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rigl {

// The widest tile a kernel takes, in vectors of accumulators; and one with vectors of 16 lanes, of 32 registers.
constexpr int kMaxVectors = 8, kMaxWideVectors = 16;

struct Clip {
  float low, high;
};

// What an epilogue applies to the clipped output. The numbers are the values of the operators' attribute.
enum class Activation : int32_t { kNone, kGelu, kGeluTanh, kSilu, kSigmoid, kTanh, kHardSwish };
constexpr int32_t kActivations = 7;

// A row of a block: its index in the output, and how many of the block's non-zeros belong to it.
struct RowEntry {
  uint32_t row;
  uint32_t count;
};

// The non-zeros of a block, row by row. Column indices are relative to the block.
struct BlockView {
  const RowEntry* rows;
  size_t row_count;
  const uint16_t* col_idx;
  const float* values;
};

// Multiply a block by a tile of activations [columns of the block][width], and accumulate over the blocks of a group.
struct TileTask {
  const float* x;
  size_t x_pitch;  // all pitches are in floats
  float* acc;      // accumulators [rows][acc_pitch], stored between the first and the last block
  size_t acc_pitch;
  int width;  // columns of the tile
  bool first, last;
  // Epilogue, applied after the last block.
  const float* bias;      // per row, or null
  const float* residual;  // same layout as y, or null
  float* y;
  size_t y_pitch;
  Clip clip;
};

// How the weights of a product with a single vector are stored. Those of 8 bits are multiplied by a scale per row.
enum class ValueKind : uint32_t { kFloat32, kFloat16, kInt8 };

// Sliced ELLPACK: slices of `slice_lanes` rows each, their non-zeros interleaved. For a single column of
// activations.
struct SliceView {
  const uint32_t* lengths;  // non-zeros of the longest row of each slice
  size_t slice_count;
  const uint16_t* col_idx;
  const void* values;
  ValueKind kind;
  const uint32_t* rows;  // output row of each lane of each slice; `row_limit` for lanes without a row
  uint32_t row_limit;
};

// Slices of as many rows as a vector has lanes, whose non-zeros are stored by windows of columns: a window is held in
// registers, and its elements are looked up by their positions. The last element of each window is zero: padding reads
// it.
constexpr int kWindow = 64;

struct WindowEntry {
  uint16_t window;
  uint16_t count;  // of non-zeros of the longest row of the slice
};

struct WindowView {
  const uint32_t* entry_counts;  // windows of each slice, those with few non-zeros first
  size_t slice_count;
  const WindowEntry* entries;
  const uint8_t* positions;
  const void* values;
  ValueKind kind;
  const uint32_t* rows;  // as in SliceView
  uint32_t row_limit;
};

struct VectorTask {
  const float* x;  // with zeros where padding reads it
  float* y;
  bool first, last;     // the first call for these rows starts with the bias, the last one clips
  const float* scales;  // per row of weights of 8 bits, or null
  const float* bias;
  Clip clip;
};

// How the columns of a tile are read from planes of pixels: one offset per filter tap.
struct PackTask {
  const float* planes;
  ptrdiff_t plane_limit;  // floats that may be read from `planes` on; none may be read before it
  ptrdiff_t plane_pitch;  // from channel to channel
  const ptrdiff_t* offsets;
  const int32_t* masks;        // [taps][width rounded up to vectors]: -1 inside the image, 0 outside
  const uint8_t* mask_needed;  // [taps]
  int width;
  const float* scale;  // per channel, or null
};

// The activations of a column of the weights: a channel and a filter tap.
struct Source {
  uint32_t channel;
  uint32_t tap;
};

// One step of a GRU for one sample, after the matrix products. Gates are in the order update, reset, candidate.
struct GateTask {
  const float* input;      // products of the input: all three gates
  const float* state;      // products of the previous state: update and reset
  const float* candidate;  // product of the candidate
  const float* bias;       // of the candidate, or null
  const float* prev;
  float* next;
  size_t size;
};

// One step of an LSTM for one sample, after the matrix products. Gates are in the order input, output, forget, cell.
struct CellTask {
  const float* input;  // products of the input: all four gates
  const float* state;  // products of the previous state: likewise
  float* cell;
  float* next;
  size_t size;
};

// The rows of an image, copied to planes with room for zeros between them.
struct RowsTask {
  const float* image;
  size_t rows;
  ptrdiff_t width;
  float* planes;
  ptrdiff_t row_pitch;
  ptrdiff_t odd;  // where odd columns are, relative to even ones; or 0: they are not apart
};

// One channel and its filter.
struct DepthwiseTask {
  const float* planes;                      // the first pixel; whole vectors may be read beyond the ends of rows
  bool in_place;                            // the planes are the image, and the filter is 1×1
  ptrdiff_t height, row_pitch;              // of the image, and floats from row to row
  const ptrdiff_t* columns_at;              // [columns]: where the pixels under each column of the filter are
  const float* weights;                     // [rows][columns]
  int rows, columns;                        // of the filter
  ptrdiff_t row_stride, row_dilation, top;  // rows above the image
  float bias;
  Clip clip;
  float* y;
  size_t out_height, out_width, pixels;
};

// A row of weights times pixels [columns][pixels]. Whole vectors are read and written.
struct RowTask {
  const float* x;
  size_t x_pitch;
  const uint32_t* col_idx;
  const float* values;
  size_t count;  // of non-zeros
  float bias;
  Clip clip;
  float* y;
  size_t pixels;
};

// Layer normalization of one vector, after adding a residual.
struct NormTask {
  const float* x;
  const float* residual;  // or null
  const float* scale;
  const float* bias;  // or null
  float* y;
  float* sum;  // of x and the residual; or null
  size_t size;
  float epsilon;
};

// Layer normalization of some vectors, one beside the other: [size][pitch], `count` of them.
struct NormColumnsTask : NormTask {
  size_t count, pitch;
};

// Queries of a task of attention, in vectors.
constexpr int kQueryVectors = 2;

// Softmax attention of one head for `width` queries, one or two vectors of them. Queries are scaled.
struct AttentionTask {
  const float* q;     // [size][width]
  const float* k;     // [size][k_pitch], of which `keys` columns
  const float* v;     // [keys][v_pitch], of which `v_size` columns
  const float* mask;  // [keys][width], added to the products; or null
  size_t size, v_size, keys, k_pitch, v_pitch;
  int width;
  float* scores;  // [keys][width], of the kernel
  float* y;       // [v_size][width]
};

struct KernelTable {
  const char* name;
  int lanes;
  int slice_lanes;  // rows of a slice of a SliceView
  void (*multiply_tile)(const BlockView&, const TileTask&);
  void (*multiply_vector)(const SliceView&, const VectorTask&);
  void (*multiply_windows)(const WindowView&, const VectorTask&);  // null where it is not faster than slices
  void (*pack_tile)(const PackTask&, const Source* sources, size_t count, float* out, size_t pitch);
  // out[c][r] = in[r][c]
  void (*transpose)(const float* in, size_t in_pitch, size_t rows, size_t columns, float* out, size_t out_pitch);
  // even[i] = in[2 * i], odd[i] = in[2 * i + 1]
  void (*deinterleave)(const float* in, size_t pairs, float* even, float* odd);
  // out[i * count + k] = in[k * pitch + i]
  void (*interleave)(const float* in, size_t pitch, size_t count, size_t columns, float* out);
  // A whole step with the reset gate applied after the product of the candidate.
  void (*gru_step)(const GateTask&);
  // With the reset gate applied before it: first reset * state, which is then multiplied; then the rest of the step.
  void (*gru_reset_state)(const GateTask&);
  void (*gru_update_state)(const GateTask&);
  void (*lstm_step)(const CellTask&);
  void (*lay_rows)(const RowsTask&);
  void (*filter_channel)(const DepthwiseTask&);
  void (*multiply_row)(const RowTask&);
  float (*sum)(const float* values, size_t count);
  // In place, `count` values in each of `rows` rows.
  void (*activate)(Activation, float* values, size_t rows, size_t count, size_t pitch);
  void (*normalize)(const NormTask&);
  void (*normalize_columns)(const NormColumnsTask&);
  void (*attend)(const AttentionTask&);
};

const KernelTable* portable_kernels();
const KernelTable* avx2_kernels();    // null where the compiler or the processor lacks the instructions
const KernelTable* avx512_kernels();  // likewise

}  // namespace rigl
