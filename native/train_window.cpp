#include "train_window.h"

#include <algorithm>
#include <cstring>

#include "train_kernels.h"

namespace rigl {
namespace {

constexpr std::int64_t kSlabBytes = 512 * 1024;
// Of a tile of outputs: its vectors of sums are registers.
constexpr std::int64_t kTilePixels = 8;
constexpr double kMostWaste = 1.2;

std::size_t bytes(std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); }

// The places [begin, end) of a line whose pixels lie inside the image.
struct Inside {
  std::int64_t begin, end;
};

Inside inside(std::int64_t first, std::int64_t step, std::int64_t places, std::int64_t size) {
  const std::int64_t begin = first >= 0 ? 0 : (-first + step - 1) / step;
  const std::int64_t end = first >= size ? 0 : (size - first + step - 1) / step;
  return {std::min(begin, places), std::clamp(end, std::min(begin, places), places)};
}

// Pixels of a line, `step` pixels of the image apart.
void copy_pixels(const TrainKernels& kernels, const float* from, std::int64_t pitch, std::int64_t count,
                 std::int64_t valid, std::int64_t samples, std::int64_t next, float* to) {
  if (pitch == samples && valid == samples) {
    std::memcpy(to, from, bytes(count * samples));
  } else if (valid == samples && samples == kernels.lanes) {
    kernels.copy_vectors(from, static_cast<std::size_t>(pitch), static_cast<std::size_t>(count),
                         static_cast<std::size_t>(next), to);
  } else {
    for (; count > 0; --count, from += pitch, to += samples) {
      std::memcpy(to, from, bytes(valid));
      std::memset(to + valid, 0, bytes(samples - valid));
    }
  }
}

void pack_line(const TrainKernels& kernels, const Slab& slab, const Band& band, const float* row,
               const PixelGrid& image, std::int64_t phase, float* to) {
  const WindowAxis& axis = slab.horizontal;
  const std::int64_t places = slab.shape.columns + axis.reach, samples = slab.shape.samples;
  const std::int64_t first = axis.step * band.column + phase + axis.offset;
  const Inside found = row == nullptr ? Inside{0, 0} : inside(first, axis.step, places, image.width);
  std::memset(to, 0, bytes(found.begin * samples));
  if (found.end > found.begin) {
    const float* from = row + (first + found.begin * axis.step) * image.batch + band.first;
    copy_pixels(kernels, from, axis.step * image.batch, found.end - found.begin, band.samples, samples,
                image.pixels() * image.batch, to + found.begin * samples);
  }
  std::memset(to + found.end * samples, 0, bytes(slab.line() - found.end * samples));
}

}  // namespace

Band BandGrid::band(std::int64_t index) const {
  const std::int64_t part = index % parts(), rest = index / parts();
  const std::int64_t row = row_begin + rest / across() * shape.rows;
  const std::int64_t column = column_begin + rest % across() * shape.columns, first = part * shape.samples;
  return {row,
          column,
          std::min(shape.rows, row_end - row),
          std::min(shape.columns, column_end - column),
          first,
          std::min(shape.samples, batch - first)};
}

std::int64_t slab_samples(std::int64_t batch, std::int64_t lanes, bool scattered) {
  const std::int64_t padded = (batch + lanes - 1) / lanes * lanes;
  const bool wasteful = static_cast<double>(padded) > kMostWaste * static_cast<double>(batch);
  return wasteful && !scattered ? batch : lanes;
}

SlabShape slab_shape(const WindowAxis& vertical, const WindowAxis& horizontal, std::int64_t channels,
                     std::int64_t height, std::int64_t width, std::int64_t samples) {
  SlabShape best = {1, std::clamp<std::int64_t>(width, 1, kTilePixels), samples};
  double least = 0;
  for (std::int64_t columns = width; columns > 0; columns = columns > kTilePixels ? (columns + 1) / 2 : 0) {
    for (std::int64_t rows = 1; rows <= height; ++rows) {
      const Slab slab = {{rows, columns, samples}, vertical, horizontal};
      if (rows > 1 && static_cast<std::int64_t>(bytes(channels * slab.channel())) > kSlabBytes) break;
      const std::int64_t bands = (height + rows - 1) / rows * ((width + columns - 1) / columns);
      const double copied = static_cast<double>(bands * slab.channel());
      const bool fits = static_cast<std::int64_t>(bytes(channels * slab.channel())) <= kSlabBytes;
      if (fits && (least == 0 || copied < least)) {
        least = copied;
        best = slab.shape;
      }
    }
  }
  return best;
}

void pack_slab(const TrainKernels& kernels, const Slab& slab, const Band& band, const float* from,
               const PixelGrid& image, std::int64_t channels, float* to) {
  const WindowAxis& axis = slab.vertical;
  for (std::int64_t channel = 0; channel < channels; ++channel, from += image.pixels() * image.batch) {
    for (std::int64_t phase = 0; phase < axis.phases; ++phase) {
      for (std::int64_t i = 0; i < slab.shape.rows + axis.reach; ++i) {
        const std::int64_t row = axis.step * (band.row + i) + phase + axis.offset;
        const bool found = row >= 0 && row < image.height;
        const float* start = found ? from + row * image.width * image.batch : nullptr;
        for (std::int64_t p = 0; p < slab.horizontal.phases; ++p, to += slab.line()) {
          pack_line(kernels, slab, band, start, image, p, to);
        }
      }
    }
  }
  std::memset(to, 0, bytes(kernels.lanes));
}

}  // namespace rigl
