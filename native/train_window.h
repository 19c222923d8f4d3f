// Convolutions in training: how a product slides its window over a source, and the slabs of it that are packed.
//
// Activations have the batch innermost: [channels][height][width][batch].
#pragma once

#include <cstddef>
#include <cstdint>

namespace rigl {

struct PixelGrid {
  std::int64_t height, width, batch;
  std::int64_t pixels() const { return height * width; }
};

// How a window moves along one axis. The pixel of the source at output `o`, phase `p` and place `i` of the window is
// step · (o + i) + p + offset. Its own output goes to the pixel scale · o + shift of the target.
struct WindowAxis {
  std::int64_t step = 1, offset = 0;
  std::int64_t phases = 1, reach = 0;  // places of the window beyond the first, per phase
  std::int64_t scale = 1, shift = 0;

  // The outputs [begin, end) whose pixels lie inside a target of this size.
  std::int64_t begin() const { return shift >= 0 ? 0 : (-shift + scale - 1) / scale; }
  std::int64_t end(std::int64_t size) const {
    const std::int64_t last = (size - shift + scale - 1) / scale;
    return size > shift && last > begin() ? last : begin();
  }
};

// Where in a window a connection reads.
struct WindowPlace {
  std::uint16_t row_phase, row, column_phase, column;
};

// Part of a batch for part of an image: `samples` are lanes of a vector each, or the whole batch as it is.
struct SlabShape {
  std::int64_t rows = 1, columns = 1;  // of the output
  std::int64_t samples = 1;

  bool operator==(const SlabShape& other) const {
    return rows == other.rows && columns == other.columns && samples == other.samples;
  }
};

struct Slab {
  SlabShape shape;
  WindowAxis vertical, horizontal;
  std::int64_t unit = 1;  // lines are a multiple of this many floats, with zeros at their ends

  std::int64_t line() const { return ((shape.columns + horizontal.reach) * shape.samples + unit - 1) / unit * unit; }
  std::int64_t row() const { return horizontal.phases * line(); }
  std::int64_t channel() const { return vertical.phases * (shape.rows + vertical.reach) * row(); }
  std::int64_t offset(const WindowPlace& place) const {
    return (place.row_phase * (shape.rows + vertical.reach) + place.row) * row() + place.column_phase * line() +
           place.column * shape.samples;
  }
};

// One slab of a product: the first output of it, and what there is of it.
struct Band {
  std::int64_t row, column, rows, columns, first, samples;
};

// All slabs of a product. Parts of the batch are innermost: together they read whole pages.
struct BandGrid {
  SlabShape shape;
  std::int64_t row_begin, row_end, column_begin, column_end, batch;

  std::int64_t parts() const { return (batch + shape.samples - 1) / shape.samples; }
  std::int64_t across() const { return (column_end - column_begin + shape.columns - 1) / shape.columns; }
  std::int64_t down() const { return (row_end - row_begin + shape.rows - 1) / shape.rows; }
  std::int64_t count() const { return parts() * across() * down(); }
  Band band(std::int64_t index) const;
};

// The samples of a slab for a batch. `scattered`: pixels of the target are not next to each other.
std::int64_t slab_samples(std::int64_t batch, std::int64_t lanes, bool scattered);

// Rows and columns of slabs such that `channels` of them stay in the L2 cache.
SlabShape slab_shape(const WindowAxis& vertical, const WindowAxis& horizontal, std::int64_t channels,
                     std::int64_t height, std::int64_t width, std::int64_t samples);

struct TrainKernels;

// Copy a band of some channels of a source, with zeros around the image, to [channels][slab.channel()], and a vector of
// zeros behind them.
void pack_slab(const TrainKernels& kernels, const Slab& slab, const Band& band, const float* from,
               const PixelGrid& image, std::int64_t channels, float* to);

}  // namespace rigl
