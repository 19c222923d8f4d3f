#include "cpu.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "threads.h"

namespace rigl {
namespace {

// The activations of a block should fit the L1 cache (32 KiB or more; most processors with AVX-512 have 48), the
// accumulators of a group the L2 cache.
constexpr double kBlockBytes = 32 * 1024, kWideBlockBytes = 48 * 1024;
constexpr std::size_t kAccumulatorBytes = 128 * 1024;
// With fewer non-zeros per row and block, loading and storing accumulators costs more than a block beyond the L1 cache.
constexpr double kMinNonzerosPerRow = 10.0;
constexpr double kMaxBlockBytes = 128 * 1024;

std::atomic<double> replaced_work{-1.0};

const KernelTable& select_kernels() {
  const char* requested = std::getenv("RIGL_COMPRESS_KERNELS");
  if (requested != nullptr) {
    if (const KernelTable* table = find_kernels(requested)) return *table;
  }
  for (const KernelTable* table : {avx512_kernels(), avx2_kernels()}) {
    if (table != nullptr) return *table;
  }
  return *portable_kernels();
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& selected = select_kernels();
  return selected;
}

const KernelTable* find_kernels(const std::string& name) {
  for (const KernelTable* table : {portable_kernels(), avx2_kernels(), avx512_kernels()}) {
    if (table != nullptr && name == table->name) return table;
  }
  return nullptr;
}

const KernelCosts& costs_of(const KernelTable& table) {
  for (const CostsOfSet& each : kCosts) {
    if (std::strcmp(each.name, table.name) == 0) return each.costs;
  }
  return kCosts[0].costs;
}

double work_per_thread() {
  const double replaced = replaced_work.load(std::memory_order_relaxed);
  return replaced < 0 ? costs_of(kernels()).threads.work : replaced;
}

void set_work_per_thread(double nanoseconds) { replaced_work.store(nanoseconds, std::memory_order_relaxed); }

int tile_width(std::size_t columns, int lanes, int max_vectors) {
  const std::size_t step = static_cast<std::size_t>(lanes);
  const std::size_t vectors = std::max<std::size_t>((columns + step - 1) / step, 1);
  const std::size_t most = static_cast<std::size_t>(max_vectors), tiles = (vectors + most - 1) / most;
  return static_cast<int>((vectors + tiles - 1) / tiles * step);
}

void size_blocks(const SparseMatrix& matrix, std::size_t packed, std::size_t width, int lanes, TileShape* shape) {
  const double block_bytes = lanes < 16 ? kBlockBytes : kWideBlockBytes;
  const double bytes = static_cast<double>(packed * sizeof(float));
  const double sources = static_cast<double>(matrix.columns / shape->columns);
  const double per_source = static_cast<double>(matrix.values.size()) / matrix.rows / sources;
  const double preferred = kMinNonzerosPerRow / std::max(per_source, 1e-6);
  const double block = std::clamp(preferred, block_bytes / bytes, kMaxBlockBytes / bytes);
  shape->block_sources = static_cast<std::uint32_t>(std::max(block, 1.0));
  const std::size_t groups = (matrix.rows * width * sizeof(float) + kAccumulatorBytes - 1) / kAccumulatorBytes;
  shape->groups = std::max(shape->groups, static_cast<std::uint32_t>(groups));
}

}  // namespace rigl
