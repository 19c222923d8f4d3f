// How a convolution reads its input: every place of the filter becomes one shift within flat planes of pixels.
//
// Output pixel (r, c) is number p = r * width + c of its plane. If the planes that are read have rows of that same width,
// the pixel under a place of the filter is number p + shift: a row of a tile is then one run of memory, and what lies
// outside the image is masked. Images of another width, and strides, are first rearranged into such planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "conv.h"
#include "kernels.h"

namespace rigl {

// One plane per channel and phase: pixels (row_start + i * row_step, column_start + j * column_step), j < out_width.
struct Phase {
  std::int64_t row_start, row_step;
  std::int64_t column_start, column_step;
  std::int64_t partner;  // the number of the phase of the columns between, where both can be split at once; or -1
};

struct Tap {
  std::int64_t row, column;  // of the input, for output pixel (0, 0)
  std::ptrdiff_t shift;      // within the planes of a channel
};

struct Geometry {
  std::int64_t height, width, out_height, out_width;
  std::int64_t row_step, column_step;  // of the input, from one output pixel to the next
  bool direct;                         // the planes are the input itself
  bool gathered;                       // there are no planes, they would be too large: pixels are read one by one
  std::vector<Phase> phases;           // where there are planes
  std::ptrdiff_t plane_pitch;          // floats from channel to channel
  std::vector<Tap> taps;

  // Places of the filter that lie above each other read one run of pixels, a row of the output apart.
  std::vector<Tap> runs;               // the uppermost of each
  std::vector<std::uint32_t> run_of;   // of each tap,
  std::vector<std::uint32_t> row_in;   // and how many rows of the output it lies below the uppermost
  std::uint32_t rows_in_run;           // at most

  std::size_t pixels() const { return static_cast<std::size_t>(out_height * out_width); }
};

// The largest planes of one image, in floats.
constexpr double kMostPlanes = 1 << 24;

// Of the places of the filter with these numbers (row * columns of the filter + column), in rising order.
Geometry make_geometry(const ConvShape& shape, const std::vector<std::uint32_t>& places, std::size_t channels,
                       std::int64_t height, std::int64_t width);

// Rearrange one channel.
void split_phases(const Geometry& geometry, const KernelTable& kernels, const float* image, float* planes);

// Masks of the places that lie within the image, for the pixels `first`..`first + width` and each of some taps.
void make_masks(const Geometry& geometry, const std::vector<Tap>& taps, std::size_t first, std::size_t width,
                std::size_t pitch, std::int32_t* masks, std::uint8_t* needed);

// Copy what the pixels `first`..`first + width` read of one channel under a place of the filter; zeros up to `pitch`.
void gather_pixels(const Geometry& geometry, const Tap& tap, const float* image, std::size_t first, std::size_t width,
                   float* out, std::size_t pitch);

}  // namespace rigl
