#include "stem.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace rigl {
namespace {

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

// Images with a border around them. Columns of a stride lie together: each row has a part for every phase of it.
struct Bordered {
  std::size_t top, left, stride, part, pitch, rows, lanes;
  std::vector<std::ptrdiff_t> offsets;  // of the places of the filter

  std::size_t plane() const { return rows * pitch; }
};

Bordered with_border(const ConvShape& shape, const ConvCall& call, int lanes) {
  Bordered made{};
  made.top = size(shape.rows.pad_begin);
  made.left = size(shape.columns.pad_begin);
  made.stride = size(shape.columns.stride);
  made.lanes = size(lanes);
  const std::int64_t reach = shape.columns.dilation * (shape.columns.kernel - 1) / shape.columns.stride;
  // A whole vector may be read at the last column of the output.
  made.part = size(shape.columns.output(call.width) + reach + 1) + made.lanes;
  made.pitch = made.part * made.stride;
  made.rows = size((shape.rows.output(call.height) - 1) * shape.rows.stride +
                   shape.rows.dilation * (shape.rows.kernel - 1) + 1);
  for (std::int64_t r = 0; r < shape.rows.kernel; ++r) {
    for (std::int64_t c = 0; c < shape.columns.kernel; ++c) {
      const std::size_t row = size(r * shape.rows.dilation), column = size(c * shape.columns.dilation);
      made.offsets.push_back(
          static_cast<std::ptrdiff_t>(row * made.pitch + column % made.stride * made.part + column / made.stride));
    }
  }
  return made;
}

// Pixels that the filter never reaches are left out.
void fill_row(const Bordered& made, const KernelTable& kernels, const float* from, std::size_t width, float* row) {
  const std::size_t used = std::min(width, made.pitch - std::min(made.pitch, made.left));
  if (made.stride == 1) {
    std::memcpy(row + made.left, from, used * sizeof(float));
    return;
  }
  std::size_t done = 0;
  if (made.stride == 2) {
    const std::size_t place = made.left / 2;
    const bool odd = made.left % 2 != 0;
    kernels.split_pairs(from, used / 2, odd ? row + made.part + place : row + place,
                        odd ? row + place + 1 : row + made.part + place);
    done = used / 2 * 2;
  }
  for (std::size_t column = done; column < used; ++column) {
    const std::size_t place = made.left + column;
    row[place % made.stride * made.part + place / made.stride] = from[column];
  }
}

// One channel, border included.
void fill_plane(const Bordered& made, const KernelTable& kernels, const ConvCall& call, std::size_t number, float border,
                float* plane) {
  const std::size_t height = size(call.height), width = size(call.width);
  std::fill(plane, plane + made.plane(), border);
  const std::size_t used = std::min(height, made.rows - std::min(made.rows, made.top));
  for (std::size_t row = 0; row < used; ++row) {
    fill_row(made, kernels, call.x + (number * height + row) * width, width, plane + (made.top + row) * made.pitch);
  }
}

}  // namespace

std::string check_padding(const ConvShape& shape) {
  for (const Axis& axis : {shape.rows, shape.columns}) {
    const std::string wrong = check_axis(axis);
    if (!wrong.empty()) return wrong;
    // The border is laid around each image: no more of it than the filter reaches.
    const std::int64_t reach = axis.dilation * (axis.kernel - 1);
    if (std::max(axis.pad_begin, axis.pad_end) > reach) return "a window with more padding than it reaches";
  }
  return "";
}

std::string check_stem(std::size_t count, std::size_t outputs, const ConvShape& shape) {
  const std::string wrong = check_padding(shape);
  if (!wrong.empty()) return wrong;
  const auto taps = size(shape.taps());
  if (outputs == 0 || count == 0 || count % outputs != 0 || count / outputs % taps != 0) {
    return "the filters do not fit the shape of the kernel";
  }
  return "";
}

StemConv::StemConv(const std::vector<float>& weights, std::size_t outputs, const ConvShape& shape,
                   const KernelTable& kernels)
    : outputs_(outputs), columns_(weights.size() / outputs), shape_(shape), kernels_(kernels) {
  const std::size_t groups = (outputs + kStemRows - 1) / kStemRows;
  packed_.assign(groups * columns_ * kStemRows, 0.0f);
  for (std::size_t o = 0; o < outputs; ++o) {
    for (std::size_t k = 0; k < columns_; ++k) {
      packed_[(o / kStemRows * columns_ + k) * kStemRows + o % kStemRows] = weights[o * columns_ + k];
    }
  }
}

void StemConv::run(const ConvCall& call, const Threads& threads) const {
  const std::int64_t height = shape_.rows.output(call.height), width = shape_.columns.output(call.width);
  if (height < 1 || width < 1 || call.batch == 0) return;
  const Bordered made = with_border(shape_, call, kernels_.lanes);
  const std::size_t all = channels(), plane = made.plane(), pixels = size(height * width);
  float* planes = prepared().floats(call.batch * all * plane + made.lanes);
  std::fill(planes + call.batch * all * plane, planes + call.batch * all * plane + made.lanes, 0.0f);
  for_each(threads, call.batch * all,
           [&](std::size_t i) { fill_plane(made, kernels_, call, i, 0.0f, planes + i * plane); });
  std::vector<std::ptrdiff_t> offsets;
  for (std::size_t channel = 0; channel < all; ++channel) {
    for (const std::ptrdiff_t each : made.offsets) {
      offsets.push_back(each + static_cast<std::ptrdiff_t>(channel * plane));
    }
  }
  for_each(threads, call.batch * size(height), [&](std::size_t i) {
    const std::size_t image = i / size(height), row = i % size(height);
    StemTask task{};
    task.x = planes + image * all * plane + row * size(shape_.rows.stride) * made.pitch;
    task.offsets = offsets.data();
    task.columns = columns_;
    task.chunk = size(shape_.taps());
    task.width = size(width);
    task.clip = call.clip;
    task.y_pitch = pixels;
    for (std::size_t first = 0; first < outputs_; first += kStemRows) {
      task.weights = packed_.data() + first * columns_;
      task.rows = static_cast<int>(std::min<std::size_t>(outputs_ - first, kStemRows));
      task.bias = call.bias == nullptr ? nullptr : call.bias + first;
      task.y = call.y + (image * outputs_ + first) * pixels + row * size(width);
      kernels_.multiply_stem(task);
    }
  });
}

void max_pool(const ConvCall& call, std::size_t channels, const ConvShape& shape, const KernelTable& kernels,
              const Threads& threads) {
  const std::int64_t height = shape.rows.output(call.height), width = shape.columns.output(call.width);
  if (height < 1 || width < 1) return;
  const Bordered made = with_border(shape, call, kernels.lanes);
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for_each(threads, call.batch * channels, [&](std::size_t i) {
    float* plane = scratch().activations.floats(made.plane() + made.lanes);
    std::fill(plane + made.plane(), plane + made.plane() + made.lanes, kLowest);
    fill_plane(made, kernels, call, i, kLowest, plane);
    for (std::size_t row = 0; row < size(height); ++row) {
      kernels.pool_row({plane + row * size(shape.rows.stride) * made.pitch, made.offsets.data(), made.offsets.size(),
                        call.y + (i * size(height) + row) * size(width), size(width)});
    }
  });
}

}  // namespace rigl
