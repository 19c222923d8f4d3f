// One product of sparse training: rows of connections times a window of source channels.
//
// Activations have the batch innermost: [channels][height][width][batch]. A linear layer is a convolution of one pixel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace rigl {

// A connection as a pass sees it: its row, its source channel, and where in the window it reads.
struct Link {
  std::uint32_t row, source;
  std::uint16_t window_row, phase, window_column;
};

// How a window moves over the source. The pixel of output (r, q), window row w, phase p and window column c is
// (row_step · r + row_offsets[w], column_step · (q + c) + column_offsets[p]).
struct Window {
  std::int64_t row_step = 1, column_step = 1;
  std::vector<std::int64_t> row_offsets, column_offsets;
  std::int64_t columns = 1;  // of the window, per phase
};

struct PassBlock {
  std::uint32_t first_source = 0;
  std::size_t first_value = 0;
  std::vector<RowEntry> rows;  // relative to the group's first row
};

struct PassGroup {
  std::uint32_t begin = 0, end = 0;  // rows
  std::vector<PassBlock> blocks;
};

// Where in the packed source of its block each connection reads, for tiles of so many pixels.
struct Placement {
  std::int64_t pixels = 0;
  std::vector<std::uint16_t> col_idx;
};

// The connections of a product in the order in which it reads them: by group of rows, block of sources, row.
struct Pass {
  std::uint32_t rows = 0, sources = 0;
  Window window;
  std::vector<PassGroup> groups;
  std::vector<std::uint32_t> order;  // of each value: the index of its connection
  std::vector<Link> links;           // in this order

  // Places in the packed source of a channel, for tiles of this many pixels.
  std::size_t places(std::int64_t tile) const {
    return window.row_offsets.size() * window.column_offsets.size() *
           static_cast<std::size_t>(tile + window.columns - 1);
  }
  // Compute the places of all connections for tiles of this many pixels, unless they are known.
  void place(std::int64_t tile, Placement* placement) const;
};

// The most pixels of a tile.
constexpr std::int64_t kMaxPixels = 16;

Pass plan_pass(std::uint32_t rows, std::uint32_t sources, Window window, const std::vector<Link>& links);

}  // namespace rigl
