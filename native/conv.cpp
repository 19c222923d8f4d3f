#include "conv.h"

#include <algorithm>
#include <utility>

#include "conv_plan.h"
#include "cpu.h"

namespace rigl {
namespace {

constexpr std::size_t kMaxPlans = 4;

// The filter taps that have a weight: a filter may be far larger than its number of non-zeros.
std::vector<std::uint32_t> used_taps(const SparseMatrix& matrix, std::uint32_t taps) {
  std::vector<std::uint32_t> used;
  if (taps <= matrix.col_idx.size()) {
    std::vector<bool> seen(taps);
    for (const std::uint32_t column : matrix.col_idx) seen[column % taps] = true;
    for (std::uint32_t tap = 0; tap < taps; ++tap) {
      if (seen[tap]) used.push_back(tap);
    }
    return used;
  }
  for (const std::uint32_t column : matrix.col_idx) used.push_back(column % taps);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  if (used.empty()) used.push_back(0);
  return used;
}

// Columns (channel, tap) become (channel, index of the tap in `used`).
SparseMatrix drop_unused_taps(SparseMatrix matrix, std::uint32_t taps, const std::vector<std::uint32_t>& used) {
  const auto count = static_cast<std::uint32_t>(used.size());
  if (count == taps) return matrix;
  for (std::uint32_t& column : matrix.col_idx) {
    const auto index = std::lower_bound(used.begin(), used.end(), column % taps) - used.begin();
    column = column / taps * count + static_cast<std::uint32_t>(index);
  }
  matrix.columns = matrix.columns / taps * count;
  return matrix;
}

void scale_gathered(const PackTask& pack, const std::vector<Source>& sources, float* packed, std::size_t pitch) {
  for (std::size_t s = 0; s < sources.size(); ++s, packed += pitch) {
    for (std::size_t i = 0; i < pitch; ++i) packed[i] *= pack.scale[sources[s].channel];
  }
}

}  // namespace

std::string check_axis(const Axis& axis) {
  if (axis.kernel < 1 || axis.stride < 1 || axis.dilation < 1 || axis.pad_begin < 0 || axis.pad_end < 0) {
    return "expected a kernel, stride and dilation of at least 1 and a padding of at least 0";
  }
  // Far beyond any filter, and far from overflow when these numbers are multiplied.
  for (const std::int64_t each : {axis.kernel, axis.stride, axis.dilation, axis.pad_begin, axis.pad_end}) {
    if (each > 65536) return "expected a kernel, stride, dilation and padding of at most 65536";
  }
  return "";
}

std::string check_conv(const SparseMatrix& matrix, const ConvShape& shape) {
  for (const Axis& axis : {shape.rows, shape.columns}) {
    const std::string wrong = check_axis(axis);
    if (!wrong.empty()) return wrong;
  }
  if (shape.taps() > matrix.columns || matrix.columns % shape.taps() != 0) {
    return "the columns of the packed weights are not a multiple of the kernel size";
  }
  return "";
}

SparseConv::SparseConv(SparseMatrix matrix, const ConvShape& shape, const KernelTable& kernels)
    : channels_(matrix.columns / static_cast<std::size_t>(shape.taps())),
      taps_(used_taps(matrix, static_cast<std::uint32_t>(shape.taps()))),
      matrix_(std::move(matrix), [taps = static_cast<std::uint32_t>(shape.taps()), used = taps_](
                                     SparseMatrix all) { return drop_unused_taps(std::move(all), taps, used); }),
      shape_(shape),
      kernels_(kernels) {}

SparseMatMul& SparseConv::matmul() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!matmul_) matmul_ = std::make_unique<SparseMatMul>(matrix_, kernels_);
  return *matmul_;
}

double SparseConv::estimate_ns(const ConvCall& call) const {
  const double rows = static_cast<double>(shape_.rows.output(call.height));
  const double pixels = rows * static_cast<double>(shape_.columns.output(call.width) * call.batch);
  const auto& costs = costs_of(kernels_).conv;
  return pixels * (static_cast<double>(matrix_.values.size()) * costs.products + matrix_.columns * costs.columns +
                   matrix_.rows * costs.rows);
}

void SparseConv::run(const ConvCall& call, const Threads& all) {
  if (call.batch == 0) return;
  const Threads threads = all.limited_to(estimate_ns(call));
  // An image of one pixel under a 1×1 filter is a vector, unless the filter reads padding.
  const auto one = [](const Axis& axis) { return axis.kernel == 1 && axis.pad_begin == 0 && axis.output(1) == 1; };
  if (call.height == 1 && call.width == 1 && one(shape_.rows) && one(shape_.columns) && call.residual == nullptr &&
      call.scale == nullptr) {
    return matmul().run({call.x, call.batch, call.bias, call.y, false, false, call.clip, call.activation}, threads);
  }
  const auto planned = plan(call.height, call.width, call.batch, threads.count);
  if (planned->geometry.pixels() == 0) return;
  // Limit the planes of a large batch: run it in several passes.
  const double floats = static_cast<double>(channels()) * static_cast<double>(planned->geometry.plane_pitch);
  const bool planes = !planned->geometry.direct && !planned->geometry.gathered;
  const std::size_t images_per_pass =
      planes ? std::max<std::size_t>(static_cast<std::size_t>(kMaxPlaneFloats / std::max(floats, 1.0)), 1) : call.batch;
  const std::size_t image = channels() * static_cast<std::size_t>(call.height * call.width);
  const std::size_t outputs = rows() * planned->geometry.pixels();
  for (std::size_t first = 0; first < call.batch; first += images_per_pass) {
    ConvCall part = call;
    part.batch = std::min(images_per_pass, call.batch - first);
    part.x += first * image;
    part.y += first * outputs;
    if (part.residual != nullptr) part.residual += first * outputs;
    if (part.scale != nullptr) part.scale += first * channels();
    run_images(part, *planned, threads);
  }
}

void SparseConv::run_images(const ConvCall& call, const ConvPlan& plan, const Threads& threads) const {
  const std::size_t plane = static_cast<std::size_t>(call.height * call.width);
  const std::size_t pitch = static_cast<std::size_t>(plan.geometry.plane_pitch);
  const float* planes = call.x;
  if (!plan.geometry.direct && !plan.geometry.gathered) {
    float* split = shared_input().reserve(call.batch * channels() * pitch);
    parallel_for(threads, call.batch * channels(),
                 [&](std::size_t i) { split_phases(plan.geometry, kernels_, call.x + i * plane, split + i * pitch); });
    planes = split;
  }
  const std::size_t groups = plan.tiles.groups.size(), tiles = plan.tile_count;
  parallel_for(threads, call.batch * tiles * groups, [&](std::size_t i) {
    run_tile(call, plan, planes, i / (tiles * groups), i / groups % tiles, i % groups);
  });
}

void SparseConv::run_tile(const ConvCall& call, const ConvPlan& plan, const float* planes, std::size_t image,
                          std::size_t tile, std::size_t group_number) const {
  const RowGroup& group = plan.tiles.groups[group_number];
  const Geometry& geometry = plan.geometry;
  const std::size_t pixels = geometry.pixels(), first = tile * plan.width;
  const std::size_t plane = static_cast<std::size_t>(call.height * call.width);
  const std::size_t width = std::min(plan.width, pixels - first), pitch = round_up(width, kernels_.lanes);
  Scratch& buffers = scratch();
  TileTask task{};
  task.acc = buffers.acc.reserve((group.end - group.begin) * pitch);
  task.acc_pitch = pitch;
  task.width = static_cast<int>(width);
  task.bias = call.bias == nullptr ? nullptr : call.bias + group.begin;
  task.clip = call.clip;
  const std::size_t offset = (image * matrix_.rows + group.begin) * pixels + first;
  task.y = call.y + offset;
  task.residual = call.residual == nullptr ? nullptr : call.residual + offset;
  task.y_pitch = pixels;
  const std::size_t run = round_up(width + plan.overhang, kernels_.lanes);
  // The runs of a narrower last tile keep the pitch of the others, which is part of the column indices.
  const std::size_t run_pitch = plan.overhang > 0 ? plan.run_pitch : pitch;
  float* packed = buffers.activations.reserve(plan.tiles.max_sources * run_pitch + kMaxWideVectors * kUnit * 2);
  PackPlan unkept;
  if (plan.packings.empty() && !geometry.gathered) {
    unkept = plan_packing(geometry, plan.sources, first, width + plan.overhang, run);
  }
  const PackPlan& packing = plan.packings.empty() ? unkept : plan.packings[tile];
  PackTask pack{};
  pack.planes = planes + image * channels() * static_cast<std::size_t>(geometry.plane_pitch);
  pack.plane_limit = static_cast<std::ptrdiff_t>(channels()) * geometry.plane_pitch;
  pack.plane_pitch = geometry.plane_pitch;
  pack.offsets = packing.offsets.data();
  pack.masks = packing.masks.data();
  pack.mask_needed = packing.needed.data();
  pack.width = static_cast<int>(width + plan.overhang);
  pack.scale = call.scale == nullptr ? nullptr : call.scale + image * channels();
  task.x = packed;
  task.x_pitch = plan.overhang > 0 ? kUnit : pitch;
  for (std::size_t b = 0; b < group.blocks.size(); ++b) {
    const Block& block = group.blocks[b];
    if (geometry.gathered) {
      for (std::size_t s = 0; s < block.sources.size(); ++s) {
        const float* channel = call.x + (image * channels() + block.sources[s].channel) * plane;
        gather_pixels(geometry, geometry.taps[block.sources[s].tap], channel, first, width, packed + s * pitch, pitch);
      }
      if (pack.scale != nullptr) scale_gathered(pack, block.sources, packed, pitch);
    } else {
      kernels_.pack_tile(pack, block.sources.data(), block.sources.size(), packed, run_pitch);
    }
    task.first = b == 0;
    task.last = b + 1 == group.blocks.size();
    kernels_.multiply_tile(block.view(), task);
  }
  kernels_.activate(call.activation, task.y, group.end - group.begin, width, pixels);
}

std::shared_ptr<const ConvPlan> SparseConv::plan(std::int64_t height, std::int64_t width, std::size_t batch,
                                                 int threads) {
  const ConvRequest request = {shape_, taps_, channels_, batch, height, width, threads};
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : plans_) {
    if (known->geometry.height != height || known->geometry.width != width || known->threads != threads) continue;
    if (known->groups == conv_groups(known->tile_count, request)) return known;
  }
  auto planned = std::make_shared<const ConvPlan>(plan_conv(matrix_, request, kernels_));
  if (plans_.size() == kMaxPlans) plans_.erase(plans_.begin());
  plans_.push_back(std::move(planned));
  return plans_.back();
}

}  // namespace rigl
