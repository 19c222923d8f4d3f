// Non-zeros arranged for the kernels: rows in groups that threads share, columns in blocks that fit the L1 cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "packed.h"

namespace rigl {

// An index has 16 bits, and slices need one value for the zero that pads them.
constexpr std::uint32_t kMaxColumns = 65535;

// Split the rows into parts of about the same work, none of them empty. Returns the bounds.
std::vector<std::uint32_t> partition_rows(const SparseMatrix& matrix, std::uint32_t parts);

struct Block {
  std::vector<RowEntry> rows;
  std::vector<std::uint16_t> col_idx;
  std::vector<float> values;
  std::vector<Source> sources;     // the activations to pack, in this order
  std::uint32_t first_column = 0;  // of activations that are read in place

  BlockView view() const { return {rows.data(), rows.size(), col_idx.data(), values.data()}; }
};

struct RowGroup {
  std::uint32_t begin = 0, end = 0;
  std::vector<Block> blocks;
};

struct TilePlan {
  std::vector<RowGroup> groups;
  std::size_t max_sources = 0;  // of a block
};

// Columns that read the same run of activations, each a step further, share a source, which is packed once.
struct TileShape {
  std::uint32_t taps = 1;           // sources per channel
  std::uint32_t columns = 1;        // per source
  std::uint32_t source_units = 1;   // added to a column index per source,
  std::uint32_t column_units = 0;   // and per column within it
  std::uint32_t block_sources = 1;  // maximum per block
  std::uint32_t groups = 1;         // minimum number of row groups, balanced by non-zeros
  bool gather = true;               // activations are packed, so sources without a non-zero are skipped
};

TilePlan plan_tiles(const SparseMatrix& matrix, const TileShape& shape);

}  // namespace rigl
