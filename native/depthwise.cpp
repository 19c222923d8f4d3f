#include "depthwise.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cpu.h"
#include "geometry.h"

namespace rigl {

// Pixels of an image row in the columns `start`, `start` + stride, ...: as many as the output is wide.
struct ColumnPhase {
  std::int64_t start;
  std::size_t from, to;  // range inside the image
};

// The layout of one channel: a plane per row phase and column phase, with zeros above and below. All rows are as wide
// as the output, so that each filter tap is one offset.
struct DepthwiseLayout {
  std::int64_t height, width, row_stride, column_stride;
  std::size_t top, out_width, pixels, plane, margin, total;
  std::vector<ColumnPhase> phases;
  std::vector<std::vector<std::ptrdiff_t>> offsets;  // [filter columns][filter rows]
  std::vector<std::vector<std::int32_t>> masks;      // [filter columns], empty where no mask is needed
  std::size_t mask_period;
};

namespace {

constexpr std::size_t kMaxLayouts = 4;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

ColumnPhase phase_at(std::int64_t start, const DepthwiseLayout& layout) {
  const std::int64_t stride = layout.column_stride, end = static_cast<std::int64_t>(layout.out_width);
  const std::int64_t from = std::clamp<std::int64_t>(-floor_div(start, stride), 0, end);
  const std::int64_t to = std::clamp<std::int64_t>(-floor_div(start - layout.width, stride), from, end);
  return {start, size(from), size(to)};
}

// The phases of a stride serve all filter columns if they hold every pixel; otherwise each column gets its own.
bool phases_hold_all(const DepthwiseLayout& layout) {
  return -floor_div(-layout.width, layout.column_stride) <= static_cast<std::int64_t>(layout.out_width);
}

std::vector<std::int32_t> mask_for(const DepthwiseLayout& layout, std::int64_t first, int lanes) {
  std::vector<std::int32_t> mask(layout.mask_period + size(lanes));
  for (std::size_t p = 0; p < mask.size(); ++p) {
    const std::int64_t column = first + static_cast<std::int64_t>(p % layout.out_width) * layout.column_stride;
    mask[p] = column >= 0 && column < layout.width ? -1 : 0;
  }
  return mask;
}

DepthwiseLayout make_layout(const ConvShape& shape, std::int64_t height, std::int64_t width, int lanes) {
  DepthwiseLayout layout{};
  const std::int64_t out_height = shape.rows.output(height);
  const std::size_t step = size(lanes);
  layout.height = height;
  layout.width = width;
  layout.row_stride = shape.rows.stride;
  layout.column_stride = shape.columns.stride;
  layout.top = size(shape.rows.pad_begin);
  layout.out_width = size(shape.columns.output(width));
  layout.pixels = size(out_height) * layout.out_width;
  const std::int64_t read_rows =
      (out_height - 1) * shape.rows.stride + shape.rows.dilation * (shape.rows.kernel - 1) + 1;
  layout.plane =
      size(-floor_div(-std::max(read_rows, height + shape.rows.pad_begin), shape.rows.stride)) * layout.out_width;
  const std::size_t rounded = (layout.pixels + step - 1) / step * step;
  layout.mask_period = layout.out_width % step == 0 ? layout.out_width : rounded;
  const bool shared = phases_hold_all(layout);
  if (shared) {
    for (std::int64_t b = 0; b < layout.column_stride; ++b) layout.phases.push_back(phase_at(b, layout));
  }
  std::int64_t max_shift = 0;
  for (std::int64_t c = 0; c < shape.columns.kernel; ++c) {
    const std::int64_t first = c * shape.columns.dilation - shape.columns.pad_begin;
    const std::int64_t shift = shared ? floor_div(first, layout.column_stride) : 0;
    const std::int64_t phase = shared ? first - shift * layout.column_stride : c;
    if (!shared) layout.phases.push_back(phase_at(first, layout));
    const std::int64_t end = first + (static_cast<std::int64_t>(layout.out_width) - 1) * layout.column_stride;
    // The outer columns of 3×3 filters always have a mask, so that one kernel serves all strides.
    const bool outer = shape.columns.kernel == 3 && c != 1;
    const bool needed = shared && (outer || first < 0 || end >= width);
    layout.masks.push_back(needed ? mask_for(layout, first, lanes) : std::vector<std::int32_t>());
    layout.offsets.emplace_back();
    const std::int64_t phase_count = shared ? layout.column_stride : shape.columns.kernel;
    for (std::int64_t r = 0; r < shape.rows.kernel; ++r) {
      const std::int64_t row = r * shape.rows.dilation;
      const std::int64_t plane_index = row % layout.row_stride * phase_count + phase;
      layout.offsets.back().push_back(plane_index * static_cast<std::int64_t>(layout.plane) +
                                      row / layout.row_stride * static_cast<std::int64_t>(layout.out_width) + shift);
    }
    max_shift = std::max(max_shift, std::abs(shift));
  }
  // At least one vector: the filters of adjacent columns read the one before the first pixel.
  layout.margin = (std::max(size(max_shift), std::size_t{1}) + step - 1) / step * step;
  layout.total = layout.margin + size(layout.row_stride) * layout.phases.size() * layout.plane + layout.margin + step;
  return layout;
}

// Strides and dilations far larger than the image make planes of zeros that cost more than the products.
bool planes_pay_off(const ConvShape& shape, std::int64_t height, std::int64_t width) {
  const Axis &rows = shape.rows, &columns = shape.columns;
  const auto out_height = static_cast<double>(rows.output(height)),
             out_width = static_cast<double>(columns.output(width));
  const double read_rows = (out_height - 1) * static_cast<double>(rows.stride) +
                           static_cast<double>(rows.dilation) * static_cast<double>(rows.kernel - 1) + 1;
  const double plane_rows =
      std::max(read_rows, static_cast<double>(height + rows.pad_begin)) + static_cast<double>(rows.stride);
  const double phases = static_cast<double>(std::max(columns.stride, columns.kernel));
  const double masks = static_cast<double>(columns.kernel) * (out_height + 1) * out_width;
  const double products = static_cast<double>(shape.taps()) * out_height * out_width;
  const double floats = plane_rows * out_width * phases + masks;
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

void fill_planes(const DepthwiseLayout& layout, const KernelTable& kernels, const float* image, float* planes) {
  const std::size_t width = size(layout.width), stride = size(layout.column_stride), phases = layout.phases.size();
  if (layout.row_stride == 1 && stride == 1 && phases == 1 && layout.out_width == width) {
    std::memcpy(planes + layout.top * width, image, size(layout.height) * width * sizeof(float));
    return;
  }
  const bool pairs = stride == 2 && phases_hold_all(layout);
  for (std::size_t row = 0; row < size(layout.height); ++row, image += width) {
    const std::size_t padded_row = layout.top + row, row_phase = padded_row % size(layout.row_stride);
    float* to = planes + row_phase * phases * layout.plane + padded_row / size(layout.row_stride) * layout.out_width;
    if (pairs) {
      kernels.deinterleave(image, width / 2, to, to + layout.plane);
      if (width % 2 != 0) to[width / 2] = image[width - 1];
      continue;
    }
    for (std::size_t n = 0; n < phases; ++n) {
      const ColumnPhase& phase = layout.phases[n];
      for (std::size_t k = phase.from; k < phase.to; ++k) {
        to[n * layout.plane + k] = image[phase.start + static_cast<std::int64_t>(k) * layout.column_stride];
      }
    }
  }
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
    : weights_(std::move(weights)), transposed_(weights_.size()), shape_(shape), kernels_(kernels) {
  const std::size_t rows = size(shape.rows.kernel), columns = size(shape.columns.kernel), taps = rows * columns;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    transposed_[i - i % taps + i % columns * rows + i % taps / columns] = weights_[i];
  }
}

void DepthwiseConv::run_direct(const ConvCall& call, const Threads& all_threads) const {
  const std::size_t image = size(call.height * call.width), taps = size(shape_.taps());
  const std::size_t pixels = size(shape_.rows.output(call.height) * shape_.columns.output(call.width));
  const double products = static_cast<double>(call.batch * channels() * pixels) * static_cast<double>(taps);
  parallel_for(all_threads.limited_to(products * costs_of(kernels_).depthwise_direct.products), call.batch * channels(),
               [&](std::size_t i) {
                 const std::size_t channel = i % channels();
                 const float bias = call.bias == nullptr ? 0.0f : call.bias[channel];
                 filter_direct(shape_, call, call.x + i * image, weights_.data() + channel * taps, bias,
                               call.y + i * pixels);
                 kernels_.activate(call.activation, call.y + i * pixels, 1, pixels, 0);
               });
}

std::shared_ptr<const DepthwiseLayout> DepthwiseConv::layout(std::int64_t height, std::int64_t width) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : layouts_) {
    if (known->height == height && known->width == width) return known;
  }
  auto made = std::make_shared<const DepthwiseLayout>(make_layout(shape_, height, width, kernels_.lanes));
  if (layouts_.size() == kMaxLayouts) layouts_.erase(layouts_.begin());
  layouts_.push_back(std::move(made));
  return layouts_.back();
}

void DepthwiseConv::run(const ConvCall& call, const Threads& all_threads) {
  if (call.batch == 0 || shape_.rows.output(call.height) < 1 || shape_.columns.output(call.width) < 1) return;
  if (!planes_pay_off(shape_, call.height, call.width)) return run_direct(call, all_threads);
  const auto kept = this->layout(call.height, call.width);
  const DepthwiseLayout& layout = *kept;
  const std::size_t all = channels(), rows = size(shape_.rows.kernel), columns = size(shape_.columns.kernel);
  const std::size_t image = size(call.height * call.width);
  const double outputs = static_cast<double>(call.batch * all * layout.pixels);
  const auto& costs = costs_of(kernels_).depthwise;
  const double per_output = costs.outputs + static_cast<double>(rows * columns) * costs.products;
  const Threads threads = all_threads.limited_to(outputs * per_output);
  // The padding is the same for every channel: a chunk writes it once.
  const std::size_t chunks =
      std::min(call.batch * all, static_cast<std::size_t>(threads.count * threads.chunks_per_thread));
  // 1×1 filters read the images in place.
  const bool direct = rows * columns == 1 && layout.row_stride == 1 && layout.column_stride == 1;
  parallel_for(threads, chunks, [&](std::size_t chunk) {
    float* planes = nullptr;
    if (!direct) {
      planes = scratch().activations.reserve(layout.total);
      std::fill(planes, planes + layout.total, 0.0f);
    }
    std::vector<DepthwiseColumn> filter;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::vector<std::int32_t>& mask = layout.masks[c];
      filter.push_back({layout.offsets[c].data(), nullptr, mask.empty() ? nullptr : mask.data()});
    }
    const std::size_t end = call.batch * all * (chunk + 1) / chunks;
    for (std::size_t i = call.batch * all * chunk / chunks; i < end; ++i) {
      const float* from = call.x + i * image;
      if (!direct) {
        fill_planes(layout, kernels_, from, planes + layout.margin);
        from = planes + layout.margin;
      }
      const float* weights = transposed_.data() + i % all * rows * columns;
      for (std::size_t c = 0; c < columns; ++c) filter[c].weights = weights + c * rows;
      const float bias = call.bias == nullptr ? 0.0f : call.bias[i % all];
      kernels_.filter_channel({from, filter.data(), static_cast<int>(columns), static_cast<int>(rows),
                               layout.mask_period, bias, call.clip, call.y + i * layout.pixels, layout.pixels});
      kernels_.activate(call.activation, call.y + i * layout.pixels, 1, layout.pixels, 0);
    }
  });
}

}  // namespace rigl
