// How a convolution reads its input: each filter tap is one offset into flat planes of pixels.
//
// Output pixel (r, c) has index p = r * width + c in its plane. If the rows of the input planes are as wide, the pixel
// under a filter tap has index p + offset: a row of a tile is one contiguous run, and what lies outside the image is
// masked. Strided inputs and inputs of another width are first rearranged into such planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "conv.h"
#include "kernels.h"

namespace rigl {

// A plane per channel and phase holds the pixels (row_start + i * row_step, column_start + j * column_step) for
// j < out_width.
struct Phase {
  std::int64_t row_start, row_step;
  std::int64_t column_start, column_step;
  std::int64_t partner;  // index of the phase of the columns in between, if both can be deinterleaved at once; or -1
};

struct Tap {
  std::int64_t row, column;  // input pixel for output pixel (0, 0)
  std::ptrdiff_t offset;     // within the planes of a channel
};

struct Geometry {
  std::int64_t height, width, out_height, out_width;
  std::int64_t row_step, column_step;  // in the input, from one output pixel to the next
  bool direct;                         // the planes are the input itself
  bool gathered;                       // planes would be too large: pixels are read one by one
  std::vector<Phase> phases;           // unless direct
  std::ptrdiff_t plane_pitch;          // floats from channel to channel
  std::vector<Tap> taps;

  // Taps of the same filter column read one run of pixels, a row of the output apart.
  std::vector<Tap> runs;                  // the topmost tap of each run
  std::vector<std::uint32_t> run_of;      // per tap: its run,
  std::vector<std::uint32_t> row_in_run;  // and how many output rows it is below the topmost tap
  std::uint32_t rows_in_run;              // maximum

  std::size_t pixels() const { return static_cast<std::size_t>(out_height * out_width); }
};

// Size limit of the planes of one image, in floats.
constexpr double kMaxPlaneFloats = 1 << 24;

// `taps` are the filter taps in use (row * filter width + column), in increasing order.
Geometry make_geometry(const ConvShape& shape, const std::vector<std::uint32_t>& taps, std::size_t channels,
                       std::int64_t height, std::int64_t width);

// Rearrange one channel into its planes.
void split_phases(const Geometry& geometry, const KernelTable& kernels, const float* image, float* planes);

// Masks of the pixels inside the image, for output pixels `first`..`first + width` and each of the taps.
void make_masks(const Geometry& geometry, const std::vector<Tap>& taps, std::size_t first, std::size_t width,
                std::size_t pitch, std::int32_t* masks, std::uint8_t* needed);

// Copy the input pixels of one channel under a filter tap, for output pixels `first`..`first + width`; zeros up to
// `pitch`.
void gather_pixels(const Geometry& geometry, const Tap& tap, const float* image, std::size_t first, std::size_t width,
                   float* out, std::size_t pitch);

}  // namespace rigl
