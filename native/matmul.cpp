#include "matmul.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"

namespace rigl {
namespace {

constexpr std::size_t kMostPlans = 4;
// A vector has next to nothing to move between the caches of threads: they pay so many times as soon.
constexpr double kVectorGain = 4;
// Columns that one thread transposes at a time.
constexpr std::size_t kTransposeStep = 256;

// The columns `first`..`first + width` of the batch, with room to read whole vectors.
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

// One group of rows for one tile of the batch, written where it belongs.
void run_group(const KernelTable& kernels, const RowGroup& group, const Activations& from, const MatMulCall& call,
               std::size_t first, std::size_t width, std::size_t rows_in_all) {
  Scratch& mine = scratch();
  const std::size_t rows = group.end - group.begin;
  const std::size_t pitch = (width + static_cast<std::size_t>(kernels.lanes) - 1) /
                            static_cast<std::size_t>(kernels.lanes) * static_cast<std::size_t>(kernels.lanes);
  TileTask task{};
  task.sums = mine.sums.floats(rows * pitch);
  task.sums_pitch = pitch;
  task.width = static_cast<int>(width);
  task.bias = call.bias == nullptr ? nullptr : call.bias + group.begin;
  task.clip = call.clip;
  if (call.y_by_column) {
    task.y = call.y + group.begin * call.batch + first;
    task.y_pitch = call.batch;
    return multiply_group(kernels, group, from, task);
  }
  task.y = mine.outputs.floats(rows * pitch);
  task.y_pitch = pitch;
  multiply_group(kernels, group, from, task);
  kernels.transpose(task.y, pitch, rows, width, call.y + first * rows_in_all + group.begin, rows_in_all);
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

// Roughly: non-zeros for a vector are gathered one by one, those for a batch meet whole vectors of it.
double SparseMatMul::nanoseconds(std::size_t batch) const {
  const double count = static_cast<double>(matrix_.values.size());
  if (batch == 1) return count / 2.5;
  return static_cast<double>(batch) * (count / 20 + (matrix_.columns + matrix_.rows) / 4.0);
}

void SparseMatMul::run(const MatMulCall& call, const Threads& all) {
  if (call.batch == 0) return;
  const double work = nanoseconds(call.batch);
  const Threads threads = all.for_work(call.batch == 1 ? kVectorGain * work : work);
  call.batch == 1 ? run_vector(call, threads) : run_tiles(call, threads);
}

void SparseMatMul::run_vector(const MatMulCall& call, const Threads& threads) {
  const auto plan = slices(static_cast<std::uint32_t>(threads.count));
  // One zero behind each block of columns, for the holes of the slices.
  const std::size_t block = plan->block_columns;
  const std::size_t blocks = (matrix_.columns + block - 1) / block;
  float* x = prepared().floats(blocks * (block + 1));
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t width = std::min<std::size_t>(block, matrix_.columns - b * block);
    std::memcpy(x + b * (block + 1), call.x + b * block, width * sizeof(float));
    x[b * (block + 1) + width] = 0.0f;
  }
  for_each(threads, plan->groups.size(), [&](std::size_t g) {
    for (const SliceGroup& part : plan->groups[g]) {
      const SliceView view = {part.lengths.data(), part.lengths.size(), part.columns.data(),
                              part.values.data(),  part.rows.data(),    plan->rows};
      const float* from = x + part.first_column / block * (block + 1);
      kernels_.multiply_vector(view, {from, call.y, part.first, part.last, call.bias, call.clip});
    }
  });
}

void SparseMatMul::run_tiles(const MatMulCall& call, const Threads& threads) {
  const std::size_t width = static_cast<std::size_t>(tile_width(call.batch, kernels_.lanes));
  const std::size_t count = (call.batch + width - 1) / width;
  const bool many = count >= static_cast<std::size_t>(threads.count);
  const auto plan = tiles(static_cast<int>(width), many ? 1 : static_cast<std::uint32_t>(threads.count));
  const std::vector<RowGroup>& groups = plan->tiles.groups;
  const std::size_t features = matrix_.columns;
  const bool in_place = call.x_by_column && call.batch % static_cast<std::size_t>(kernels_.lanes) == 0;
  const auto part_of = [&](std::size_t t) { return std::min(width, call.batch - t * width); };
  const auto one_tile = [&](std::size_t t, const Activations& from, std::size_t g) {
    run_group(kernels_, groups[g], from, call, t * width, part_of(t), matrix_.rows);
  };
  if (many) {
    for_each(threads, count, [&](std::size_t t) {
      Activations from = {call.x + t * width, call.batch};
      if (!in_place) {
        float* packed = scratch().activations.floats(features * width);
        transpose_rows(kernels_, call, t * width, part_of(t), 0, features, features, packed, width);
        from = {packed, width};
      }
      for (std::size_t g = 0; g < groups.size(); ++g) one_tile(t, from, g);
    });
    return;
  }
  for (std::size_t t = 0; t < count; ++t) {
    Activations from = {call.x + t * width, call.batch};
    if (!in_place) {
      float* packed = prepared().floats(features * width);
      for_each(threads, (features + kTransposeStep - 1) / kTransposeStep, [&](std::size_t step) {
        const std::size_t begin = step * kTransposeStep, end = std::min(features, begin + kTransposeStep);
        transpose_rows(kernels_, call, t * width, part_of(t), begin, end, features, packed, width);
      });
      from = {packed, width};
    }
    for_each(threads, groups.size(), [&](std::size_t g) { one_tile(t, from, g); });
  }
}

std::shared_ptr<const SlicePlan> SparseMatMul::slices(std::uint32_t groups) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!slices_) slices_ = std::make_shared<SlicePlan>(plan_slices(matrix_, kernels_.lanes, groups));
  return slices_;
}

std::shared_ptr<const SparseMatMul::Plan> SparseMatMul::tiles(int width, std::uint32_t groups) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& each : tiles_) {
    if (each->width == width && each->groups == groups) return each;
  }
  if (tiles_.size() == kMostPlans) tiles_.erase(tiles_.begin());
  TileShape shape;
  shape.groups = groups;
  shape.gather = false;
  size_blocks(matrix_, static_cast<std::size_t>(width), static_cast<std::size_t>(width), &shape);
  tiles_.push_back(std::make_shared<Plan>(Plan{width, groups, plan_tiles(matrix_, shape)}));
  return tiles_.back();
}

}  // namespace rigl
