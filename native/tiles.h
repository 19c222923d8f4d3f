// The layout of values between operators of this library: columns in tiles, each [features][columns of the tile], as
// products compute them. The last tile is narrower. All operators of a session have the same tiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "cpu.h"
#include "kernels.h"

namespace rigl {

struct Tiles {
  std::size_t columns, width, count;

  Tiles(std::size_t columns, const KernelTable& kernels)
      : columns(columns),
        width(static_cast<std::size_t>(tile_width(columns, kernels.lanes))),
        count((columns + width - 1) / width) {}

  std::size_t width_of(std::size_t tile) const { return std::min(width, columns - tile * width); }
  // Where a tile of this many features begins.
  std::size_t begin(std::size_t tile, std::size_t features) const { return tile * width * features; }

  // Call `body(index in the value, column, count)` for the pieces of the columns [first, first + count) of a feature.
  template <class Body>
  void each_piece(std::size_t first, std::size_t count, std::size_t feature, std::size_t features,
                  const Body& body) const {
    for (std::size_t column = first; column < first + count;) {
      const std::size_t tile = column / width, inside = column - tile * width;
      const std::size_t piece = std::min(width_of(tile) - inside, first + count - column);
      body(begin(tile, features) + feature * width_of(tile) + inside, column - first, piece);
      column += piece;
    }
  }
};

}  // namespace rigl
