#include "matmul.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "tiles.h"

namespace rigl {
namespace {

constexpr std::size_t kMaxPlans = 4;
// Columns transposed per task.
constexpr std::size_t kTransposeStep = 256;

// A tile of the batch, [features][pitch], readable in whole vectors: those of its last block from `end`, if not null.
struct Activations {
  const float* x;
  std::size_t pitch;
  const float* end = nullptr;
};

std::size_t whole_vectors(std::size_t count, const KernelTable& kernels) {
  const auto lanes = static_cast<std::size_t>(kernels.lanes);
  return (count + lanes - 1) / lanes * lanes;
}

// A tile of the call.
struct Tile {
  std::size_t first, width;
};

void multiply_group(const KernelTable& kernels, const RowGroup& group, const Activations& from, TileTask task) {
  for (std::size_t b = 0; b < group.blocks.size(); ++b) {
    const Block& block = group.blocks[b];
    task.first = b == 0;
    task.last = b + 1 == group.blocks.size();
    task.x = task.last && from.end != nullptr ? from.end : from.x + block.first_column * from.pitch;
    task.x_pitch = from.pitch;
    kernels.multiply_tile(block.view(), task);
  }
}

// Compute one group of rows for one tile of the batch.
void run_group(const KernelTable& kernels, const RowGroup& group, const Activations& from, const MatMulCall& call,
               const Tile& tile, std::size_t total_rows) {
  Scratch& buffers = scratch();
  const std::size_t rows = group.end - group.begin, width = tile.width;
  const std::size_t pitch = whole_vectors(width, kernels);
  TileTask task{};
  task.acc = buffers.acc.reserve(rows * pitch);
  task.acc_pitch = pitch;
  task.width = static_cast<int>(width);
  task.bias = call.bias == nullptr ? nullptr : call.bias + group.begin;
  task.clip = call.clip;
  if (call.y_by_column) {
    task.y = call.y + tile.first * total_rows + group.begin * width;
    task.y_pitch = width;
    multiply_group(kernels, group, from, task);
    return kernels.activate(call.activation, task.y, rows, width, task.y_pitch);
  }
  task.y = buffers.outputs.reserve(rows * pitch);
  task.y_pitch = pitch;
  multiply_group(kernels, group, from, task);
  kernels.activate(call.activation, task.y, rows, width, pitch);
  kernels.transpose(task.y, pitch, rows, width, call.y + tile.first * total_rows + group.begin, total_rows);
}

// The features [begin, end) of a tile whose samples are stored one after the other.
void transpose_rows(const KernelTable& kernels, const MatMulCall& call, const Tile& tile, std::size_t begin,
                    std::size_t end, std::size_t features, float* out, std::size_t pitch) {
  kernels.transpose(call.x + tile.first * features + begin, features, tile.width, end - begin, out + begin * pitch,
                    pitch);
  for (std::size_t k = begin; k < end && tile.width < pitch; ++k) {
    std::fill(out + k * pitch + tile.width, out + (k + 1) * pitch, 0.0f);
  }
}

// A tile that is read where it is. Unless its rows are whole vectors, the last vector would reach beyond its end: the
// features of the last block are copied.
Activations in_place(const KernelTable& kernels, const MatMulCall& call, const Tile& tile, const TilePlan& plan,
                     std::size_t features) {
  Activations from = {call.x + tile.first * features, tile.width};
  if (tile.width == whole_vectors(tile.width, kernels)) return from;
  const std::size_t copied = plan.groups.front().blocks.back().first_column * tile.width;
  const std::size_t size = features * tile.width - copied, room = size + static_cast<std::size_t>(kernels.lanes);
  float* end = shared_input().reserve(room);
  std::memcpy(end, from.x + copied, size * sizeof(float));
  std::fill(end + size, end + room, 0.0f);
  from.end = end;
  return from;
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
  const Tiles layout(call.batch, kernels_);
  const bool enough_tiles = layout.count >= static_cast<std::size_t>(threads.count);
  const auto tiles_of_width =
      tiles(static_cast<int>(layout.width), enough_tiles ? 1 : static_cast<std::uint32_t>(threads.count));
  const TilePlan& plan = tiles_of_width->plan;
  const std::size_t features = matrix_.columns, pitch = layout.width;
  const auto tile_of = [&](std::size_t t) { return Tile{t * layout.width, layout.width_of(t)}; };
  const auto run_tile = [&](std::size_t t, const Activations& from, std::size_t g) {
    run_group(kernels_, plan.groups[g], from, call, tile_of(t), matrix_.rows);
  };
  if (enough_tiles) {
    parallel_for(threads, layout.count, [&](std::size_t t) {
      Activations from{};
      if (call.x_by_column) {
        from = in_place(kernels_, call, tile_of(t), plan, features);
      } else {
        float* packed = scratch().activations.reserve(features * pitch);
        transpose_rows(kernels_, call, tile_of(t), 0, features, features, packed, pitch);
        from = {packed, pitch};
      }
      for (std::size_t g = 0; g < plan.groups.size(); ++g) run_tile(t, from, g);
    });
    return;
  }
  for (std::size_t t = 0; t < layout.count; ++t) {
    Activations from{};
    if (call.x_by_column) {
      from = in_place(kernels_, call, tile_of(t), plan, features);
    } else {
      float* packed = shared_input().reserve(features * pitch);
      parallel_for(threads, (features + kTransposeStep - 1) / kTransposeStep, [&](std::size_t step) {
        const std::size_t begin = step * kTransposeStep, end = std::min(features, begin + kTransposeStep);
        transpose_rows(kernels_, call, tile_of(t), begin, end, features, packed, pitch);
      });
      from = {packed, pitch};
    }
    parallel_for(threads, plan.groups.size(), [&](std::size_t g) { run_tile(t, from, g); });
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
