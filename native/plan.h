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
  std::vector<Source> sources;     // what to pack, in the order of the columns
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
  std::size_t most_columns = 0;  // of a block
};

struct TileShape {
  std::uint32_t taps;           // columns per channel
  std::uint32_t block_columns;  // at most
  std::uint32_t groups;         // of rows, at least; by non-zeros
  bool gather;                  // columns without a non-zero are left out: the activations are packed
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
