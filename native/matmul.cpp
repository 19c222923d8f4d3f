#include "matmul.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"

namespace rigl {
namespace {

constexpr std::size_t kMaxPlans = 4;
// Columns transposed per task.
constexpr std::size_t kTransposeStep = 256;

// A tile of the batch, [columns][pitch], readable in whole vectors.
struct Activations {
  const float* x;
  std::size_t pitch;
};

void multiply_group(const KernelTable& kernels, const RowGroup& group, const Activations& from, TileTask task) {
  for (std::size_t b = 0; b < group.blocks.size(); ++b) {
    const Block& block = group.blocks[b];
    task.x = from.x + block.first_column * from.pitch;
    task.x_pitch = from.pitch;
    task.first = b == 0;
    task.last = b + 1 == group.blocks.size();
    kernels.multiply_tile(block.view(), task);
  }
}

// Compute one group of rows for one tile of the batch.
void run_group(const KernelTable& kernels, const RowGroup& group, const Activations& from, const MatMulCall& call,
               std::size_t first, std::size_t width, std::size_t total_rows) {
  Scratch& buffers = scratch();
  const std::size_t rows = group.end - group.begin;
  const std::size_t pitch = (width + static_cast<std::size_t>(kernels.lanes) - 1) /
                            static_cast<std::size_t>(kernels.lanes) * static_cast<std::size_t>(kernels.lanes);
  TileTask task{};
  task.acc = buffers.acc.reserve(rows * pitch);
  task.acc_pitch = pitch;
  task.width = static_cast<int>(width);
  task.bias = call.bias == nullptr ? nullptr : call.bias + group.begin;
  task.clip = call.clip;
  if (call.y_by_column) {
    task.y = call.y + group.begin * call.batch + first;
    task.y_pitch = call.batch;
    multiply_group(kernels, group, from, task);
    return kernels.activate(call.activation, task.y, rows, width, task.y_pitch);
  }
  task.y = buffers.outputs.reserve(rows * pitch);
  task.y_pitch = pitch;
  multiply_group(kernels, group, from, task);
  kernels.activate(call.activation, task.y, rows, width, pitch);
  kernels.transpose(task.y, pitch, rows, width, call.y + first * total_rows + group.begin, total_rows);
}

void copy_rows(const MatMulCall& call, std::size_t first, std::size_t width, std::size_t begin, std::size_t end,
               float* out, std::size_t pitch) {
  for (std::size_t k = begin; k < end; ++k) {
    std::memcpy(out + k * pitch, call.x + k * call.batch + first, width * sizeof(float));
    std::fill(out + k * pitch + width, out + (k + 1) * pitch, 0.0f);
  }
}

void transpose_rows(const KernelTable& kernels, const MatMulCall& call, std::size_t first, std::size_t width,
                    std::size_t begin, std::size_t end, std::size_t features, float* out, std::size_t pitch) {
  if (call.x_by_column) return copy_rows(call, first, width, begin, end, out, pitch);
  kernels.transpose(call.x + first * features + begin, features, width, end - begin, out + begin * pitch, pitch);
  for (std::size_t k = begin; k < end && width < pitch; ++k) {
    std::fill(out + k * pitch + width, out + (k + 1) * pitch, 0.0f);
  }
}

}  // namespace

bool SparseMatMul::looks_up() const { return kernels_.multiply_windows != nullptr && fits_windows(matrix_.columns); }

double SparseMatMul::estimate_ns(std::size_t batch) const {
  const double nonzeros = static_cast<double>(matrix_.values.size());
  const KernelCosts& costs = costs_of(kernels_);
  if (batch == 1) return nonzeros * (looks_up() ? costs.vector_windows.products : costs.vector.products);
  return static_cast<double>(batch) * (nonzeros * costs.batched.products + matrix_.columns * costs.batched.columns +
                                       matrix_.rows * costs.batched.rows);
}

void SparseMatMul::run(const MatMulCall& call, const Threads& all) {
  if (call.batch == 0) return;
  // A vector moves little data between the caches of threads, so they pay off sooner.
  const auto& costs = costs_of(kernels_).threads;
  const double factor = call.batch == 1 ? costs.work / costs.vector_work : 1.0;
  const Threads threads = all.limited_to(factor * estimate_ns(call.batch));
  call.batch == 1 ? run_vector(call, threads) : run_tiles(call, threads);
}

void SparseMatMul::run_vector(const MatMulCall& call, const Threads& threads) {
  const auto slices_of_groups = slices(static_cast<std::uint32_t>(threads.count));
  if (!slices_of_groups->windows.groups.empty()) return run_windows(call, slices_of_groups->windows, threads);
  const SlicePlan& plan = slices_of_groups->plan;
  // Each block of columns is followed by a zero, which the padding of the slices reads.
  const std::size_t block = plan.block_columns;
  const std::size_t blocks = (matrix_.columns + block - 1) / block;
  float* x = shared_input().reserve(blocks * (block + 1));
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t width = std::min<std::size_t>(block, matrix_.columns - b * block);
    std::memcpy(x + b * (block + 1), call.x + b * block, width * sizeof(float));
    x[b * (block + 1) + width] = 0.0f;
  }
  parallel_for(threads, plan.groups.size(), [&](std::size_t g) {
    for (const SliceGroup& group : plan.groups[g]) {
      const float* from = x + group.first_column / block * (block + 1);
      kernels_.multiply_vector(group.view(plan.rows),
                               {from, call.y, group.first, group.last, plan.row_scales(), call.bias, call.clip});
    }
    const SliceGroup& rows = plan.groups[g].front();
    kernels_.activate(call.activation, call.y + rows.begin, 1, rows.end - rows.begin, 0);
  });
}

void SparseMatMul::run_windows(const MatMulCall& call, const WindowPlan& plan, const Threads& threads) const {
  float* x = shared_input().reserve(plan.windows * kWindow);
  for (std::size_t w = 0; w < plan.windows; ++w) {
    const std::size_t first = w * kWindowColumns,
                      width = std::min<std::size_t>(kWindowColumns, matrix_.columns - first);
    std::memcpy(x + w * kWindow, call.x + first, width * sizeof(float));
    std::fill(x + w * kWindow + width, x + (w + 1) * kWindow, 0.0f);
  }
  parallel_for(threads, plan.groups.size(), [&](std::size_t g) {
    const WindowGroup& group = plan.groups[g];
    const bool last = group.rest.values.empty();
    VectorTask task = {x, call.y, true, last, plan.row_scales(), call.bias, call.clip};
    kernels_.multiply_windows(group.view(plan.rows), task);
    task.first = false;
    task.last = true;
    if (!last) kernels_.multiply_vector(group.rest.view(plan.rows), task);
    kernels_.activate(call.activation, call.y + group.begin, 1, group.end - group.begin, 0);
  });
}

void SparseMatMul::run_tiles(const MatMulCall& call, const Threads& threads) {
  const std::size_t width = static_cast<std::size_t>(tile_width(call.batch, kernels_.lanes));
  const std::size_t count = (call.batch + width - 1) / width;
  const bool enough_tiles = count >= static_cast<std::size_t>(threads.count);
  const auto tiles_of_width =
      tiles(static_cast<int>(width), enough_tiles ? 1 : static_cast<std::uint32_t>(threads.count));
  const std::vector<RowGroup>& groups = tiles_of_width->plan.groups;
  const std::size_t features = matrix_.columns;
  const bool in_place = call.x_by_column && call.batch % static_cast<std::size_t>(kernels_.lanes) == 0;
  const auto width_of = [&](std::size_t t) { return std::min(width, call.batch - t * width); };
  const auto run_tile = [&](std::size_t t, const Activations& from, std::size_t g) {
    run_group(kernels_, groups[g], from, call, t * width, width_of(t), matrix_.rows);
  };
  if (enough_tiles) {
    parallel_for(threads, count, [&](std::size_t t) {
      Activations from = {call.x + t * width, call.batch};
      if (!in_place) {
        float* packed = scratch().activations.reserve(features * width);
        transpose_rows(kernels_, call, t * width, width_of(t), 0, features, features, packed, width);
        from = {packed, width};
      }
      for (std::size_t g = 0; g < groups.size(); ++g) run_tile(t, from, g);
    });
    return;
  }
  for (std::size_t t = 0; t < count; ++t) {
    Activations from = {call.x + t * width, call.batch};
    if (!in_place) {
      float* packed = shared_input().reserve(features * width);
      parallel_for(threads, (features + kTransposeStep - 1) / kTransposeStep, [&](std::size_t step) {
        const std::size_t begin = step * kTransposeStep, end = std::min(features, begin + kTransposeStep);
        transpose_rows(kernels_, call, t * width, width_of(t), begin, end, features, packed, width);
      });
      from = {packed, width};
    }
    parallel_for(threads, groups.size(), [&](std::size_t g) { run_tile(t, from, g); });
  }
}

std::shared_ptr<const SparseMatMul::SlicesOfGroups> SparseMatMul::slices(std::uint32_t groups) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : slices_) {
    if (known->groups == groups) return known;
  }
  if (slices_.size() == kMaxPlans) slices_.erase(slices_.begin());
  SlicesOfGroups planned{groups, {}, {}};
  if (looks_up()) {
    planned.windows = plan_windows(matrix_, kernels_, groups);
  } else {
    planned.plan = plan_slices(matrix_, kernels_, groups);
  }
  slices_.push_back(std::make_shared<const SlicesOfGroups>(std::move(planned)));
  return slices_.back();
}

std::shared_ptr<const SparseMatMul::TilesOfWidth> SparseMatMul::tiles(int width, std::uint32_t groups) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : tiles_) {
    if (known->width == width && known->groups == groups) return known;
  }
  if (tiles_.size() == kMaxPlans) tiles_.erase(tiles_.begin());
  TileShape shape;
  shape.groups = groups;
  shape.gather = false;
  const SparseMatrix matrix = matrix_;
  size_blocks(matrix, static_cast<std::size_t>(width), static_cast<std::size_t>(width), kernels_.lanes, &shape);
  tiles_.push_back(std::make_shared<const TilesOfWidth>(TilesOfWidth{width, groups, plan_tiles(matrix, shape)}));
  return tiles_.back();
}

}  // namespace rigl
