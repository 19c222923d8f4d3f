// Which kernels this processor runs, and how tiles are sized for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernel_costs.h"
#include "kernels.h"
#include "packed.h"
#include "plan.h"

namespace rigl {

// The fastest kernels of this processor, unless RIGL_COMPRESS_KERNELS=portable|avx2|avx512 selects others.
const KernelTable& kernels();
// The kernels of this name; null if they do not run on this processor.
const KernelTable* find_kernels(const std::string& name);
// The costs by which these kernels choose the number of threads.
const KernelCosts& costs_of(const KernelTable& table);
// Replace the work per thread, for calibration; a negative number restores that of the costs.
void set_work_per_thread(double nanoseconds);

// Width of the widest tile for this many columns: tiles of equally many vectors, no wider than a kernel takes.
int tile_width(std::size_t columns, int lanes, int max_vectors = kMaxVectors);

// Choose the sizes of blocks and groups. A source takes `packed` floats of activations, a row `width` accumulators.
void size_blocks(const SparseMatrix& matrix, std::size_t packed, std::size_t width, int lanes, TileShape* shape);

}  // namespace rigl
