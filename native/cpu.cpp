#include "cpu.h"

#include <algorithm>
#include <cstdlib>

namespace rigl {
namespace {

// A block of activations should stay in the first cache (32 KiB and more), the sums of a group in the second.
constexpr double kBlockBytes = 32 * 1024;
constexpr std::size_t kSumBytes = 128 * 1024;
// With fewer non-zeros per row and block than this, moving sums costs more than a block that leaves the first cache.
constexpr double kFewestPerRow = 10.0;
constexpr double kMostBlockBytes = 128 * 1024;

const KernelTable& choose() {
  const char* wish = std::getenv("RIGL_COMPRESS_KERNELS");
  if (wish != nullptr) {
    if (const KernelTable* found = kernels_named(wish)) return *found;
  }
  for (const KernelTable* each : {avx512_kernels(), avx2_kernels()}) {
    if (each != nullptr) return *each;
  }
  return *portable_kernels();
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

const KernelTable* kernels_named(const std::string& name) {
  for (const KernelTable* each : {portable_kernels(), avx2_kernels(), avx512_kernels()}) {
    if (each != nullptr && name == each->name) return each;
  }
  return nullptr;
}

int tile_width(std::size_t columns, int lanes) {
  const std::size_t step = static_cast<std::size_t>(lanes);
  const std::size_t vectors = std::max<std::size_t>((columns + step - 1) / step, 1);
  const std::size_t tiles = (vectors + kMostVectors - 1) / kMostVectors;
  return static_cast<int>((vectors + tiles - 1) / tiles * step);
}

void size_blocks(const SparseMatrix& matrix, std::size_t packed, std::size_t width, TileShape* shape) {
  const double bytes = static_cast<double>(packed * sizeof(float));
  const double sources = static_cast<double>(matrix.columns / shape->columns);
  const double per_source = static_cast<double>(matrix.values.size()) / matrix.rows / sources;
  const double wanted = kFewestPerRow / std::max(per_source, 1e-6);
  const double fitting = std::clamp(wanted, kBlockBytes / bytes, kMostBlockBytes / bytes);
  shape->block_sources = static_cast<std::uint32_t>(std::max(fitting, 1.0));
  const std::size_t for_sums = (matrix.rows * width * sizeof(float) + kSumBytes - 1) / kSumBytes;
  shape->groups = std::max(shape->groups, static_cast<std::uint32_t>(for_sums));
}

}  // namespace rigl
