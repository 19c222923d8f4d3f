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

// Choose blocks and groups: `packed` floats of activations for each source, `width` columns of sums for each row.
void size_blocks(const SparseMatrix& matrix, std::size_t packed, std::size_t width, TileShape* shape);

}  // namespace rigl
