// Non-zeros arranged for the kernels: rows in groups that threads share, columns in blocks that fit the L1 cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "packed.h"

namespace rigl {

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

struct SliceGroup {
  std::vector<std::uint32_t> lengths, rows;
  std::vector<std::uint16_t> col_idx;
  std::vector<float> values;
  std::uint32_t begin = 0, end = 0;  // rows
  std::uint32_t first_column = 0;    // of the columns this group reads
  bool first = true, last = true;    // among the groups of the same rows
};

struct SlicePlan {
  std::vector<std::vector<SliceGroup>> groups;  // [row groups][column blocks]
  std::uint32_t block_columns = 0;
  std::uint32_t rows = 0;
};

struct WindowGroup {
  std::uint32_t begin = 0, end = 0;  // rows
  std::vector<std::uint32_t> entry_counts, rows;
  std::vector<WindowEntry> entries;
  std::vector<std::uint8_t> positions;
  std::vector<float> values;
};

struct WindowPlan {
  std::vector<WindowGroup> groups;
  std::size_t windows = 0;
  std::uint32_t rows = 0;
};

// The columns of a window besides the zero at its end.
constexpr std::uint32_t kWindowColumns = kWindow - 1;
// Whether non-zeros and padding, stored by windows, are small enough to be read faster than without padding.
bool windows_pay_off(const SparseMatrix& matrix, std::uint32_t groups);
WindowPlan plan_windows(const SparseMatrix& matrix, int lanes, std::uint32_t groups);

SlicePlan plan_slices(const SparseMatrix& matrix, int lanes, std::uint32_t groups);

}  // namespace rigl
