#include "depthwise.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "cpu.h"
#include "geometry.h"

namespace rigl {

// How one channel is laid out: in each row every phase of the column stride is apart, with zeros before and after it.
struct DepthwiseLayout {
  std::int64_t height, width, row_pitch, phase_pitch, margin;
  std::size_t out_height, out_width, total;
  std::vector<std::ptrdiff_t> columns_at;  // [filter columns]
  const KernelTable* kernels;
};

namespace {

constexpr std::size_t kMaxLayouts = 4;
// Rows start at whole cache lines.
constexpr std::int64_t kLine = 16;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }
std::int64_t whole_lines(std::int64_t floats) { return ceil_div(floats, kLine) * kLine; }

// How far the filter reads before and after the columns of a phase.
struct Reach {
  std::int64_t before = 0, after = 0;
};

Reach reach_of(const Axis& columns, std::int64_t width) {
  Reach reach;
  const std::int64_t last = columns.output(width) - 1, count = ceil_div(width, columns.stride);
  for (std::int64_t c = 0; c < columns.kernel; ++c) {
    const std::int64_t shift = floor_div(c * columns.dilation - columns.pad_begin, columns.stride);
    reach.before = std::max(reach.before, -shift);
    reach.after = std::max(reach.after, last + shift + 1 - count);
  }
  return reach;
}

// Vectors of 16 lanes are mostly empty where images are narrow.
const KernelTable& kernels_for(const KernelTable& kernels, std::int64_t out_width) {
  const KernelTable* narrow = kernels.lanes > 8 && out_width <= 8 ? avx2_kernels() : nullptr;
  return narrow == nullptr ? kernels : *narrow;
}

DepthwiseLayout make_layout(const ConvShape& shape, std::int64_t height, std::int64_t width,
                            const KernelTable& kernels) {
  DepthwiseLayout layout{};
  const Axis& columns = shape.columns;
  const Reach reach = reach_of(columns, width);
  layout.height = height;
  layout.width = width;
  layout.out_height = size(shape.rows.output(height));
  layout.out_width = size(columns.output(width));
  layout.kernels = &kernels_for(kernels, columns.output(width));
  // Whole vectors are written: none may reach what is behind the zeros.
  layout.phase_pitch = whole_lines(ceil_div(width, columns.stride) + reach.before + reach.after);
  layout.row_pitch = columns.stride * layout.phase_pitch;
  layout.margin = whole_lines(reach.before);
  // The last vector may begin at the last pixel of the output.
  layout.total = size(layout.margin + height * layout.row_pitch + kLine);
  for (std::int64_t c = 0; c < columns.kernel; ++c) {
    const std::int64_t first = c * columns.dilation - columns.pad_begin, shift = floor_div(first, columns.stride);
    layout.columns_at.push_back((first - shift * columns.stride) * layout.phase_pitch + shift);
  }
  return layout;
}

// Strides and dilations far larger than the image make planes of zeros that cost more than the products.
bool planes_pay_off(const ConvShape& shape, std::int64_t height, std::int64_t width) {
  const Reach reach = reach_of(shape.columns, width);
  const double pitch = static_cast<double>(shape.columns.stride) *
                       static_cast<double>(width / shape.columns.stride + 1 + reach.before + reach.after + kLine);
  const double floats = static_cast<double>(height) * pitch;
  const double products = static_cast<double>(shape.taps()) * static_cast<double>(shape.rows.output(height)) *
                          static_cast<double>(shape.columns.output(width));
  return floats < kMaxPlaneFloats &&
         floats < 8 * (static_cast<double>(height) * static_cast<double>(width) + products) + 65536;
}

// Filter one channel pixel by pixel.
void filter_direct(const ConvShape& shape, const ConvCall& call, const float* image, const float* weights, float bias,
                   float* y) {
  const Axis &rows = shape.rows, &columns = shape.columns;
  const std::int64_t out_height = rows.output(call.height), out_width = columns.output(call.width);
  for (std::int64_t p = 0; p < out_height * out_width; ++p) {
    const std::int64_t top = p / out_width * rows.stride - rows.pad_begin;
    const std::int64_t left = p % out_width * columns.stride - columns.pad_begin;
    float sum = bias;
    for (std::int64_t r = 0; r < rows.kernel; ++r) {
      const std::int64_t row = top + r * rows.dilation;
      if (row < 0 || row >= call.height) continue;
      for (std::int64_t c = 0; c < columns.kernel; ++c) {
        const std::int64_t column = left + c * columns.dilation;
        if (column >= 0 && column < call.width)
          sum += weights[r * columns.kernel + c] * image[row * call.width + column];
      }
    }
    sum = sum < call.clip.low ? call.clip.low : sum;
    y[p] = sum > call.clip.high ? call.clip.high : sum;
  }
}

void lay_phases(const DepthwiseLayout& layout, std::int64_t stride, const RowsTask& task) {
  const float* from = task.image;
  float* to = task.planes;
  for (std::size_t row = 0; row < task.rows; ++row, from += task.width, to += task.row_pitch) {
    for (std::int64_t column = 0; column < task.width; ++column) {
      to[column % stride * layout.phase_pitch + column / stride] = from[column];
    }
  }
}

// 1×1 filters read the images in place.
bool reads_in_place(const ConvShape& shape) {
  return shape.taps() == 1 && shape.rows.stride == 1 && shape.columns.stride == 1;
}

}  // namespace

std::string check_depthwise(const std::vector<float>& weights, const ConvShape& shape) {
  for (const Axis& axis : {shape.rows, shape.columns}) {
    const std::string wrong = check_axis(axis);
    if (!wrong.empty()) return wrong;
    // The padding is stored around each image: no more of it than the filter reaches.
    const std::int64_t reach = axis.dilation * (axis.kernel - 1);
    if (std::max(axis.pad_begin, axis.pad_end) > reach) return "expected no more padding than the kernel reaches";
  }
  const auto taps = static_cast<std::size_t>(shape.taps());
  return weights.empty() || weights.size() % taps != 0 ? "the weights are not a multiple of the kernel size" : "";
}

DepthwiseConv::DepthwiseConv(std::vector<float> weights, const ConvShape& shape, const KernelTable& kernels)
    : weights_(std::move(weights)), channels_(weights_.size() / size(shape.taps())), shape_(shape), kernels_(kernels) {}

std::size_t DepthwiseConv::pixels(const ConvCall& call) const {
  return size(shape_.rows.output(call.height) * shape_.columns.output(call.width));
}

double DepthwiseConv::estimate_ns(const ConvCall& call) const {
  const double outputs = static_cast<double>(call.batch * channels() * pixels(call));
  const double taps = static_cast<double>(shape_.taps());
  if (!planes_pay_off(shape_, call.height, call.width)) {
    return outputs * taps * costs_of(kernels_).depthwise_direct.products;
  }
  const auto& costs = costs_of(kernels_).depthwise;
  return outputs * (costs.outputs + taps * costs.products);
}

DepthwiseConv::Room DepthwiseConv::begin(const ConvCall& call) {
  const std::size_t count = pixels(call);
  if (!planes_pay_off(shape_, call.height, call.width)) return {nullptr, nullptr, count};
  std::shared_ptr<const DepthwiseLayout> layout = layout_for(call.height, call.width);
  if (reads_in_place(shape_)) return {std::move(layout), nullptr, count};
  // The zeros are the same for every channel.
  float* planes = scratch().activations.reserve(layout->total);
  std::fill(planes, planes + layout->total, 0.0f);
  planes += layout->margin;
  return {std::move(layout), planes, count};
}

void DepthwiseConv::lay(const Room& room, const float* image, std::size_t first, std::size_t rows) const {
  if (room.planes == nullptr) return;
  const DepthwiseLayout& layout = *room.layout;
  const std::int64_t stride = shape_.columns.stride;
  float* planes = room.planes + static_cast<std::int64_t>(first) * layout.row_pitch;
  const RowsTask task = {image, rows, layout.width, planes, layout.row_pitch, stride == 2 ? layout.phase_pitch : 0};
  stride <= 2 ? layout.kernels->lay_rows(task) : lay_phases(layout, stride, task);
}

std::shared_ptr<const DepthwiseLayout> DepthwiseConv::layout_for(std::int64_t height, std::int64_t width) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : layouts_) {
    if (known->height == height && known->width == width) return known;
  }
  auto made = std::make_shared<const DepthwiseLayout>(make_layout(shape_, height, width, kernels_));
  if (layouts_.size() == kMaxLayouts) layouts_.erase(layouts_.begin());
  layouts_.push_back(std::move(made));
  return layouts_.back();
}

void DepthwiseConv::filter(const ConvCall& call, const Room& room, std::size_t channel, const float* image,
                           float* y) const {
  const float* weights = weights_.data() + channel * size(shape_.taps());
  const float bias = call.bias == nullptr ? 0.0f : call.bias[channel];
  if (room.layout == nullptr) {
    filter_direct(shape_, call, image, weights, bias, y);
  } else {
    const DepthwiseLayout& layout = *room.layout;
    const bool in_place = room.planes == nullptr;
    layout.kernels->filter_channel({in_place ? image : room.planes, in_place, layout.height, layout.row_pitch,
                                    layout.columns_at.data(), weights, static_cast<int>(shape_.rows.kernel),
                                    static_cast<int>(shape_.columns.kernel), shape_.rows.stride, shape_.rows.dilation,
                                    shape_.rows.pad_begin, bias, call.clip, y, layout.out_height, layout.out_width,
                                    room.pixels});
  }
  kernels_.activate(call.activation, y, 1, room.pixels, 0);
}

void DepthwiseConv::run(const ConvCall& call, const Threads& all_threads, float* means) {
  const std::size_t count = pixels(call), image = size(call.height * call.width), total = call.batch * channels();
  if (total == 0 || count == 0) return;
  const Threads threads = all_threads.limited_to(estimate_ns(call));
  const std::size_t chunks = std::min(total, static_cast<std::size_t>(threads.count * threads.chunks_per_thread));
  parallel_for(threads, chunks, [&](std::size_t chunk) {
    const Room room = begin(call);
    const std::size_t end = total * (chunk + 1) / chunks;
    for (std::size_t i = total * chunk / chunks; i < end; ++i) {
      const float* from = call.x + i * image;
      float* y = call.y + i * count;
      lay(room, from, 0, size(call.height));
      filter(call, room, i % channels(), from, y);
      if (means != nullptr) means[i] = kernels_.sum(y, count) / static_cast<float>(count);
    }
  });
}

}  // namespace rigl
