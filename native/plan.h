// Non-zeros arranged for the kernels: rows in groups that threads share, columns in blocks that fit the first cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "packed.h"

namespace rigl {

struct Block {
  std::vector<RowEntry> rows;
  std::vector<std::uint16_t> columns;
  std::vector<float> values;
  std::vector<Source> sources;     // what to pack, in this order
  std::uint32_t first_column = 0;  // of activations that are read where they are

  BlockView view() const { return {rows.data(), rows.size(), columns.data(), values.data()}; }
};

struct RowGroup {
  std::uint32_t begin = 0, end = 0;
  std::vector<Block> blocks;
};

struct TilePlan {
  std::vector<RowGroup> groups;
  std::size_t most_rows = 0;     // of a group
  std::size_t most_sources = 0;  // of a block
};

// Columns that read the same run of activations, a step apart each, share a source: it is packed once.
struct TileShape {
  std::uint32_t taps = 1;           // sources per channel
  std::uint32_t columns = 1;        // per source
  std::uint32_t source_units = 1;   // what a source adds to the index of its columns,
  std::uint32_t column_units = 0;   // and what each column adds to the one before
  std::uint32_t block_sources = 1;  // at most
  std::uint32_t groups = 1;         // of rows, at least; by non-zeros
  bool gather = true;               // sources without a non-zero are left out: the activations are packed
};

TilePlan plan_tiles(const SparseMatrix& matrix, const TileShape& shape);

struct SliceGroup {
  std::vector<std::uint32_t> lengths, rows;
  std::vector<std::uint16_t> columns;
  std::vector<float> values;
  std::uint32_t first_column = 0;  // of the columns that this group reads
  bool first = true, last = true;  // of the groups of the same rows
};

struct SlicePlan {
  std::vector<std::vector<SliceGroup>> groups;  // [rows][columns]
  std::uint32_t block_columns = 0;
  std::uint32_t rows = 0;
};

SlicePlan plan_slices(const SparseMatrix& matrix, int lanes, std::uint32_t groups);

// Cut rows into parts of about the same work; every part has a row.
std::vector<std::uint32_t> cut_rows(const SparseMatrix& matrix, std::uint32_t parts);

}  // namespace rigl
