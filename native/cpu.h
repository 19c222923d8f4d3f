// Which kernels run here, and how tiles are cut for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels.h"
#include "packed.h"
#include "plan.h"

namespace rigl {

// The best kernels of this processor; RIGL_COMPRESS_KERNELS=portable|avx2|avx512 asks for others.
const KernelTable& kernels();
// The kernels of a name, or none where they do not run.
const KernelTable* kernels_named(const std::string& name);

// Columns of the widest tile for so many columns: tiles of equal numbers of vectors, no wider than a kernel takes.
int tile_width(std::size_t columns, int lanes);

// Blocks and groups for tiles of a width.
TileShape shape_tiles(const SparseMatrix& matrix, std::uint32_t taps, int width, std::uint32_t groups, bool gather);

}  // namespace rigl
