#include "geometry.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace rigl {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

// The phases of a stride fit planes as wide as the output if no tap reads a column beyond that width.
bool phases_fit(const Axis& columns, std::int64_t width, std::int64_t out_width) {
  for (std::int64_t k = 0; k < columns.kernel; ++k) {
    const std::int64_t start = k * columns.dilation - columns.pad_begin;
    const std::int64_t phase = start - floor_div(start, columns.stride) * columns.stride;
    if (ceil_div(width - phase, columns.stride) > out_width) return false;
  }
  return true;
}

struct PhaseOffset {
  std::int64_t phase_start, steps;
};

// The phase a tap starts in, and its distance from the start of the phase in strides.
PhaseOffset phase_offset(std::int64_t start, std::int64_t stride) {
  const std::int64_t steps = floor_div(start, stride);
  return {start - steps * stride, steps};
}

// Numbers pairs in the order of their first appearance.
class PairIndex {
 public:
  std::size_t insert(std::int64_t one, std::int64_t other) {
    return index_.emplace(std::make_pair(one, other), index_.size()).first->second;
  }
  std::int64_t find(std::int64_t one, std::int64_t other) const {
    const auto found = index_.find({one, other});
    return found == index_.end() ? -1 : static_cast<std::int64_t>(found->second);
  }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> index_;
};

// Every second pixel of rows with an even number of pixels.
bool deinterleaves(const Geometry& geometry, const Phase& phase) {
  const bool first_two = phase.column_start == 0 || phase.column_start == 1;
  return phase.column_step == 2 && geometry.width == 2 * geometry.out_width && first_two;
}

// Taps are ordered by row, so the first of a run is its topmost.
void find_runs(Geometry* geometry) {
  PairIndex index;
  geometry->rows_in_run = 1;
  for (const Tap& tap : geometry->taps) {
    const std::size_t r = index.insert(phase_offset(tap.row, geometry->row_step).phase_start, tap.column);
    if (r == geometry->runs.size()) geometry->runs.push_back(tap);
    const auto below = static_cast<std::uint32_t>((tap.row - geometry->runs[r].row) / geometry->row_step);
    geometry->run_of.push_back(static_cast<std::uint32_t>(r));
    geometry->row_in_run.push_back(below);
    geometry->rows_in_run = std::max(geometry->rows_in_run, below + 1);
  }
}

// Assign the taps to planes, one per phase. Where column phases do not fit, each filter column gets its own plane,
// with zeros outside the image.
void find_phases(const ConvShape& shape, std::size_t channels, Geometry* geometry) {
  PairIndex index;
  const bool by_phase = phases_fit(shape.columns, geometry->width, geometry->out_width);
  std::vector<std::size_t> phase_of;
  for (const Tap& tap : geometry->taps) {
    const std::int64_t row_start = phase_offset(tap.row, shape.rows.stride).phase_start;
    const std::int64_t column_start =
        by_phase ? phase_offset(tap.column, shape.columns.stride).phase_start : tap.column;
    const std::size_t phase = index.insert(row_start, column_start);
    if (phase == geometry->phases.size()) {
      geometry->phases.push_back({row_start, shape.rows.stride, column_start, shape.columns.stride, -1});
    }
    phase_of.push_back(phase);
  }
  for (Phase& phase : geometry->phases) {
    if (deinterleaves(*geometry, phase)) phase.partner = index.find(phase.row_start, 1 - phase.column_start);
  }
  const std::int64_t plane_rows = ceil_div(geometry->height, shape.rows.stride);
  const double floats = static_cast<double>(geometry->phases.size()) * static_cast<double>(plane_rows) *
                        static_cast<double>(geometry->out_width) * static_cast<double>(channels);
  geometry->gathered = floats > kMaxPlaneFloats;
  if (geometry->gathered) return;
  const std::int64_t plane = plane_rows * geometry->out_width;
  for (std::size_t t = 0; t < geometry->taps.size(); ++t) {
    Tap& tap = geometry->taps[t];
    const std::int64_t right = by_phase ? phase_offset(tap.column, shape.columns.stride).steps : 0;
    const std::int64_t down = phase_offset(tap.row, shape.rows.stride).steps;
    tap.offset = static_cast<std::int64_t>(phase_of[t]) * plane + down * geometry->out_width + right;
  }
  geometry->plane_pitch = static_cast<std::int64_t>(geometry->phases.size()) * plane;
}

// Scratch for the half of the output of `deinterleave` that is not used.
constexpr std::int64_t kDiscarded = 64;

// Copy every second pixel of a row, starting with the first.
void copy_even(const KernelTable& kernels, const float* row, std::int64_t count, float* out) {
  float discarded[kDiscarded];
  for (std::int64_t done = 0; done < count; done += kDiscarded) {
    const auto part = static_cast<std::size_t>(std::min(kDiscarded, count - done));
    kernels.deinterleave(row + 2 * done, part, out + done, discarded);
  }
}

void copy_row(const Geometry& geometry, const Phase& phase, const float* row, float* out) {
  // Output columns inside the image.
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

Geometry make_geometry(const ConvShape& shape, const std::vector<std::uint32_t>& taps, std::size_t channels,
                       std::int64_t height, std::int64_t width) {
  Geometry geometry{};
  geometry.height = height;
  geometry.width = width;
  geometry.out_height = shape.rows.output(height);
  geometry.out_width = shape.columns.output(width);
  geometry.row_step = shape.rows.stride;
  geometry.column_step = shape.columns.stride;
  geometry.direct = shape.rows.stride == 1 && shape.columns.stride == 1 && geometry.out_width == width;
  for (const std::uint32_t tap : taps) {
    const std::int64_t row = tap / shape.columns.kernel * shape.rows.dilation - shape.rows.pad_begin;
    const std::int64_t column = tap % shape.columns.kernel * shape.columns.dilation - shape.columns.pad_begin;
    geometry.taps.push_back({row, column, static_cast<std::ptrdiff_t>(row * width + column)});
  }
  if (geometry.direct) {
    geometry.plane_pitch = static_cast<std::ptrdiff_t>(height * width);
  } else {
    find_phases(shape, channels, &geometry);
  }
  find_runs(&geometry);
  return geometry;
}

void split_phases(const Geometry& geometry, const KernelTable& kernels, const float* image, float* planes) {
  const std::int64_t plane_rows = ceil_div(geometry.height, geometry.row_step);
  for (std::size_t p = 0; p < geometry.phases.size(); ++p) {
    const Phase& phase = geometry.phases[p];
    float* out = planes + static_cast<std::int64_t>(p) * plane_rows * geometry.out_width;
    // Two phases of adjacent columns are deinterleaved together.
    const bool pair = deinterleaves(geometry, phase) && phase.column_start == 0;
    const std::int64_t other = phase.partner;
    if (other >= 0 && !pair) continue;  // written together with its partner
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
        kernels.deinterleave(from, static_cast<std::size_t>(geometry.out_width), to,
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
      // One run of pixels within a row at a time.
      const std::size_t run = std::min<std::size_t>(width - i, static_cast<std::size_t>(geometry.out_width - column));
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

void gather_pixels(const Geometry& geometry, const Tap& tap, const float* image, std::size_t first, std::size_t width,
                   float* out, std::size_t pitch) {
  const std::int64_t start = static_cast<std::int64_t>(first), step = geometry.column_step;
  // Output columns that read inside the image.
  const std::int64_t low = std::max<std::int64_t>(ceil_div(-tap.column, step), 0);
  const std::int64_t high = std::max(ceil_div(geometry.width - tap.column, step), low);
  std::int64_t row = start / geometry.out_width, column = start % geometry.out_width;
  std::fill(out, out + pitch, 0.0f);
  for (std::size_t i = 0; i < width; ++row, column = 0) {
    const std::int64_t left = static_cast<std::int64_t>(width - i);
    const std::int64_t end = std::min(column + left, geometry.out_width), from_row = row * geometry.row_step + tap.row;
    const bool inside = from_row >= 0 && from_row < geometry.height;
    const std::int64_t from = from_row * geometry.width + tap.column;
    for (std::int64_t c = std::max(column, low); inside && c < std::min(end, high); ++c) {
      out[static_cast<std::int64_t>(i) + c - column] = image[from + c * step];
    }
    i += static_cast<std::size_t>(end - column);
  }
}

}  // namespace rigl
