#include "sparse_depthwise.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "conv_plan.h"
#include "cpu.h"

namespace rigl {
namespace {

// Pixels of a channel that stay in the L1 cache between two steps.
constexpr std::size_t kPixelsAtOnce = 2048;

}  // namespace

std::string check_sparse_depthwise(const SparseMatrix& matrix, const std::vector<float>& filters,
                                   const ConvShape& shape) {
  const std::string wrong = check_depthwise(filters, shape);
  if (!wrong.empty()) return wrong;
  return filters.size() == matrix.rows * static_cast<std::size_t>(shape.taps())
             ? ""
             : "expected a filter for each row of the packed weights";
}

SparseDepthwise::SparseDepthwise(SparseMatrix matrix, std::vector<float> filters, const ConvShape& shape,
                                 const KernelTable& kernels)
    : matrix_(std::move(matrix)), depthwise_(std::move(filters), shape, kernels), kernels_(kernels) {}

// Rows are read in whole vectors: where images end within one, they are copied.
SparseDepthwise::Pixels SparseDepthwise::whole_vectors(const ConvCall& call, std::size_t image) const {
  const std::size_t count = static_cast<std::size_t>(call.height * call.width);
  const std::size_t pitch = round_up(count, kernels_.lanes);
  const float* x = call.x + image * columns() * count;
  if (pitch == count) return {x, count, pitch};
  float* copy = shared_input().reserve(columns() * pitch);
  for (std::size_t channel = 0; channel < columns(); ++channel) {
    std::memcpy(copy + channel * pitch, x + channel * count, count * sizeof(float));
    std::fill(copy + channel * pitch + count, copy + (channel + 1) * pitch, 0.0f);
  }
  return {copy, count, pitch};
}

// How many rows of an image are computed at once: all, or some that are whole vectors and stay in the L1 cache.
std::size_t SparseDepthwise::rows_at_once(const ConvCall& call) const {
  const std::size_t height = static_cast<std::size_t>(call.height), width = static_cast<std::size_t>(call.width);
  const std::size_t step = static_cast<std::size_t>(kernels_.lanes) / std::gcd(kernels_.lanes, static_cast<int>(width));
  const std::size_t rows = std::max(kPixelsAtOnce / width / step * step, step);
  return std::min(rows, height);
}

// Compute some rows of the image of a channel.
void SparseDepthwise::widen(const SparseDepthwiseCall& call, const Pixels& pixels, std::size_t channel,
                            std::size_t first, std::size_t count, float* out) const {
  const std::size_t from = matrix_.row_ptr[channel];
  const float bias = call.inner_bias == nullptr ? 0.0f : call.inner_bias[channel];
  kernels_.multiply_row({pixels.x + first, pixels.pitch, matrix_.col_idx.data() + from, matrix_.values.data() + from,
                         matrix_.row_ptr[channel + 1] - from, bias, call.inner_clip, out, count});
  kernels_.activate(call.inner_activation, out, 1, round_up(count, kernels_.lanes), 0);
}

void SparseDepthwise::run_channels(const SparseDepthwiseCall& call, const Pixels& pixels, const Channels& channels) {
  const DepthwiseConv::Room room = depthwise_.begin(call.conv);
  const std::size_t height = static_cast<std::size_t>(call.conv.height);
  const std::size_t width = static_cast<std::size_t>(call.conv.width);
  const std::size_t rows = room.planes == nullptr ? height : rows_at_once(call.conv);
  float* computed = scratch().outputs.reserve(round_up(rows * width, kernels_.lanes));
  for (std::size_t c = channels.first; c < channels.end; ++c) {
    for (std::size_t row = 0; row < height; row += rows) {
      const std::size_t some = std::min(rows, height - row);
      widen(call, pixels, c, row * width, some * width, computed);
      depthwise_.lay(room, computed, row, some);
    }
    const std::size_t i = channels.image * matrix_.rows + c;
    float* y = call.conv.y + i * room.pixels;
    depthwise_.filter(call.conv, room, c, computed, y);
    if (call.means != nullptr) call.means[i] = kernels_.sum(y, room.pixels) / static_cast<float>(room.pixels);
  }
}

void SparseDepthwise::run(const SparseDepthwiseCall& call, const Threads& all_threads) {
  if (depthwise_.pixels(call.conv) == 0) return;
  const double products = static_cast<double>(matrix_.values.size()) *
                          static_cast<double>(call.conv.height * call.conv.width) *
                          static_cast<double>(call.conv.batch);
  const Threads threads =
      all_threads.limited_to(products * costs_of(kernels_).conv.products + depthwise_.estimate_ns(call.conv));
  const std::size_t chunks = std::min(channels(), static_cast<std::size_t>(threads.count * threads.chunks_per_thread));
  for (std::size_t image = 0; image < call.conv.batch; ++image) {
    const Pixels pixels = whole_vectors(call.conv, image);
    parallel_for(threads, chunks, [&](std::size_t chunk) {
      run_channels(call, pixels, {image, channels() * chunk / chunks, channels() * (chunk + 1) / chunks});
    });
  }
}

}  // namespace rigl
