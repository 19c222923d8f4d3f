#include "cpu.h"

#include <algorithm>
#include <cstdlib>

namespace rigl {
namespace {

// A block of activations should stay in the first cache (32 KiB and more), the sums of a group in the second.
constexpr std::size_t kBlockBytes = 32 * 1024;
constexpr std::size_t kSumBytes = 128 * 1024;
// With fewer non-zeros per row and block than this, moving sums costs more than a block that leaves the first cache.
constexpr double kFewestPerRow = 5.0;
constexpr std::size_t kMostBlockBytes = 128 * 1024;

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

TileShape shape_tiles(const SparseMatrix& matrix, std::uint32_t taps, int width, std::uint32_t groups, bool gather) {
  const std::size_t row_bytes = static_cast<std::size_t>(width) * sizeof(float);
  const double per_column = static_cast<double>(matrix.values.size()) / matrix.rows / matrix.columns;
  const double wanted = kFewestPerRow / std::max(per_column, 1e-6);
  const double columns = std::clamp(wanted, static_cast<double>(kBlockBytes / row_bytes),
                                    static_cast<double>(kMostBlockBytes / row_bytes));
  const std::size_t for_sums = (matrix.rows * row_bytes + kSumBytes - 1) / kSumBytes;
  return {taps, static_cast<std::uint32_t>(columns), std::max(groups, static_cast<std::uint32_t>(for_sums)), gather};
}

}  // namespace rigl
