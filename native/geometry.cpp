#include "geometry.h"

#include <algorithm>
#include <cstring>

namespace rigl {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

// Phases of a stride fit planes as wide as the output if no column beyond that width is ever read.
bool phases_fit(const Axis& columns, std::int64_t width, std::int64_t out_width) {
  for (std::int64_t k = 0; k < columns.kernel; ++k) {
    const std::int64_t start = k * columns.dilation - columns.pad_begin;
    const std::int64_t phase = start - floor_div(start, columns.stride) * columns.stride;
    if (ceil_div(width - phase, columns.stride) > out_width) return false;
  }
  return true;
}

struct Offset {
  std::int64_t phase_start, shift;
};

// A place of the filter as a phase and a shift in steps of it.
Offset offset_of(std::int64_t start, std::int64_t stride) {
  const std::int64_t shift = floor_div(start, stride);
  return {start - shift * stride, shift};
}

std::size_t phase_number(Geometry* geometry, const Phase& wanted) {
  for (std::size_t p = 0; p < geometry->phases.size(); ++p) {
    const Phase& each = geometry->phases[p];
    if (each.row_start == wanted.row_start && each.column_start == wanted.column_start) return p;
  }
  geometry->phases.push_back(wanted);
  return geometry->phases.size() - 1;
}

// The taps are in order of their rows: the first of a run is its uppermost.
void find_runs(Geometry* geometry) {
  geometry->rows_in_run = 1;
  for (const Tap& tap : geometry->taps) {
    std::size_t r = 0;
    for (; r < geometry->runs.size(); ++r) {
      const Tap& first = geometry->runs[r];
      if (first.column == tap.column && (tap.row - first.row) % geometry->row_step == 0) break;
    }
    if (r == geometry->runs.size()) geometry->runs.push_back(tap);
    const auto below = static_cast<std::uint32_t>((tap.row - geometry->runs[r].row) / geometry->row_step);
    geometry->run_of.push_back(static_cast<std::uint32_t>(r));
    geometry->row_in.push_back(below);
    geometry->rows_in_run = std::max(geometry->rows_in_run, below + 1);
  }
}

// What split_pairs gives besides what is wanted.
constexpr std::int64_t kUnwanted = 64;

// Every second pixel of a row, from its first on.
void copy_even(const KernelTable& kernels, const float* row, std::int64_t count, float* out) {
  float unwanted[kUnwanted];
  for (std::int64_t done = 0; done < count; done += kUnwanted) {
    const auto part = static_cast<std::size_t>(std::min(kUnwanted, count - done));
    kernels.split_pairs(row + 2 * done, part, out + done, unwanted);
  }
}

void copy_row(const Geometry& geometry, const Phase& phase, const float* row, float* out) {
  // Columns of the output side that lie within the image.
  const std::int64_t from = std::max<std::int64_t>(0, ceil_div(-phase.column_start, phase.column_step));
  const std::int64_t to =
      std::min(geometry.out_width, ceil_div(geometry.width - phase.column_start, phase.column_step));
  if (to <= from) {
    std::fill(out, out + geometry.out_width, 0.0f);
    return;
  }
  std::fill(out, out + from, 0.0f);
  const float* first = row + phase.column_start;
  if (phase.column_step == 1) {
    std::memcpy(out + from, first + from, static_cast<std::size_t>(to - from) * sizeof(float));
  } else {
    for (std::int64_t j = from; j < to; ++j) out[j] = first[j * phase.column_step];
  }
  std::fill(out + to, out + geometry.out_width, 0.0f);
}

}  // namespace

Geometry make_geometry(const ConvShape& shape, std::int64_t height, std::int64_t width) {
  Geometry geometry{};
  geometry.height = height;
  geometry.width = width;
  geometry.out_height = shape.rows.output(height);
  geometry.out_width = shape.columns.output(width);
  geometry.row_step = shape.rows.stride;
  geometry.column_step = shape.columns.stride;
  geometry.direct = shape.rows.stride == 1 && shape.columns.stride == 1 && geometry.out_width == width;
  const bool by_phase = phases_fit(shape.columns, width, geometry.out_width);
  for (std::int64_t r = 0; r < shape.rows.kernel; ++r) {
    for (std::int64_t c = 0; c < shape.columns.kernel; ++c) {
      const std::int64_t row = r * shape.rows.dilation - shape.rows.pad_begin;
      const std::int64_t column = c * shape.columns.dilation - shape.columns.pad_begin;
      geometry.taps.push_back({row, column, 0});
      if (geometry.direct) {
        geometry.taps.back().shift = static_cast<std::ptrdiff_t>(row * width + column);
        continue;
      }
      const Offset down = offset_of(row, shape.rows.stride);
      // Where phases do not fit, each column of the filter gets a plane of its own, zeros outside the image included.
      const Offset right = by_phase ? offset_of(column, shape.columns.stride) : Offset{column, 0};
      const std::int64_t rows = ceil_div(height - down.phase_start, shape.rows.stride);
      const std::size_t number = phase_number(&geometry, {down.phase_start, shape.rows.stride, std::max<std::int64_t>(rows, 0),
                                                          right.phase_start, shape.columns.stride});
      geometry.taps.back().shift = static_cast<std::ptrdiff_t>(
          static_cast<std::int64_t>(number) * ceil_div(height, shape.rows.stride) * geometry.out_width +
          down.shift * geometry.out_width + right.shift);
    }
  }
  const std::int64_t planes = geometry.direct ? 1 : static_cast<std::int64_t>(geometry.phases.size());
  const std::int64_t plane = geometry.direct ? height * width : ceil_div(height, shape.rows.stride) * geometry.out_width;
  geometry.plane_pitch = static_cast<std::ptrdiff_t>(planes * plane);
  find_runs(&geometry);
  return geometry;
}

void split_phases(const Geometry& geometry, const KernelTable& kernels, const float* image, float* planes) {
  const std::int64_t plane_rows = ceil_div(geometry.height, geometry.row_step);
  for (std::size_t p = 0; p < geometry.phases.size(); ++p) {
    const Phase& phase = geometry.phases[p];
    float* out = planes + static_cast<std::int64_t>(p) * plane_rows * geometry.out_width;
    // Two phases of neighbouring columns are split at once.
    const bool pair = phase.column_step == 2 && geometry.width == 2 * geometry.out_width && phase.column_start == 0;
    const bool partner = phase.column_step == 2 && geometry.width == 2 * geometry.out_width && phase.column_start == 1;
    std::int64_t other = -1;
    if (pair || partner) {
      for (std::size_t q = 0; q < geometry.phases.size(); ++q) {
        const Phase& each = geometry.phases[q];
        if (each.row_start == phase.row_start && each.column_start == 1 - phase.column_start) {
          other = static_cast<std::int64_t>(q);
        }
      }
    }
    if (partner && other >= 0) continue;  // done with its pair
    for (std::int64_t i = 0; i < plane_rows; ++i) {
      const std::int64_t row = phase.row_start + i * phase.row_step;
      float* to = out + i * geometry.out_width;
      const float* from = image + row * geometry.width;
      if (row >= geometry.height) {
        std::fill(to, to + geometry.out_width, 0.0f);
        if (pair && other >= 0) {
          float* second = planes + (other * plane_rows + i) * geometry.out_width;
          std::fill(second, second + geometry.out_width, 0.0f);
        }
      } else if (pair && other >= 0) {
        kernels.split_pairs(from, static_cast<std::size_t>(geometry.out_width), to,
                            planes + (other * plane_rows + i) * geometry.out_width);
      } else if (pair) {
        copy_even(kernels, from, geometry.out_width, to);
      } else {
        copy_row(geometry, phase, from, to);
      }
    }
  }
}

void make_masks(const Geometry& geometry, const std::vector<Tap>& taps, std::size_t first, std::size_t width,
                std::size_t pitch, std::int32_t* masks, std::uint8_t* needed) {
  const std::int64_t start = static_cast<std::int64_t>(first);
  for (std::size_t t = 0; t < taps.size(); ++t) {
    const Tap& tap = taps[t];
    std::int32_t* out = masks + t * pitch;
    std::int64_t row = start / geometry.out_width, column = start % geometry.out_width;
    bool all = true;
    for (std::size_t i = 0; i < width;) {
      // One run of pixels of the same row at a time.
      const std::size_t run =
          std::min<std::size_t>(width - i, static_cast<std::size_t>(geometry.out_width - column));
      const std::int64_t from_row = row * geometry.row_step + tap.row;
      if (from_row < 0 || from_row >= geometry.height) {
        std::fill(out + i, out + i + run, 0);
        all = false;
      } else {
        const std::int64_t low = std::max(column, ceil_div(-tap.column, geometry.column_step));
        const std::int64_t high = std::min(column + static_cast<std::int64_t>(run),
                                           ceil_div(geometry.width - tap.column, geometry.column_step));
        std::int32_t* here = out + i - column;
        const std::int64_t end = column + static_cast<std::int64_t>(run);
        if (low <= column && high >= end) {
          std::fill(here + column, here + end, -1);
        } else {
          for (std::int64_t c = column; c < end; ++c) here[c] = c >= low && c < high ? -1 : 0;
          all = false;
        }
      }
      i += run;
      column = 0;
      ++row;
    }
    std::fill(out + width, out + pitch, 0);
    needed[t] = all ? 0 : 1;
  }
}

}  // namespace rigl
