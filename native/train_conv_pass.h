// One product of a convolution in training: its connections in the order in which it reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train_kernels.h"
#include "train_window.h"

namespace rigl {

// A connection as a product sees it: the row that it adds to, the channel and the place in the window that it reads.
struct ConvLink {
  std::uint32_t row, source;
  WindowPlace place;
};

// The connections of some rows to some sources.
struct LinkBlock {
  std::uint32_t first_row = 0, first_source = 0, sources = 0;
  std::size_t first_value = 0;
  bool first = false, last = false;  // of these rows
  std::vector<RowEntry> rows;        // relative to the first
};

// How connections are cut into blocks: sources that stay in the L1 cache, rows whose sums stay near it.
struct BlockSizes {
  std::uint32_t rows, sources;
};

struct ConvPass {
  std::uint32_t rows = 0, sources = 0;
  WindowAxis vertical, horizontal;
  std::uint32_t group_rows = 1;      // of a group of blocks: they share their rows
  std::vector<LinkBlock> blocks;     // by rows, then by sources
  std::vector<std::uint32_t> order;  // of each value: the index of its connection
  std::vector<ConvLink> links;       // in this order

  ConvBlock block(const LinkBlock& which, const std::vector<std::uint32_t>& offsets, const float* values) const {
    return {which.rows.data(), which.rows.size(), offsets.data() + which.first_value, values + which.first_value};
  }
};

// Of the window of one product.
struct WindowAxes {
  WindowAxis vertical, horizontal;
};

ConvPass plan_conv_pass(std::uint32_t rows, std::uint32_t sources, const WindowAxes& axes,
                        const std::vector<ConvLink>& links, const BlockSizes& sizes);

// Blocks for products, and for gradients of weights.
BlockSizes product_blocks(const WindowAxes& axes, std::uint32_t rows, std::uint32_t sources, std::size_t links,
                          int lanes);
BlockSizes gradient_blocks(const WindowAxes& axes, std::uint32_t rows, int lanes);

// Where each connection reads in a slab, relative to its block; computed again only for another shape.
struct SlabOffsets {
  SlabShape shape = {0, 0, 0};
  std::vector<std::uint32_t> offsets;

  void place(const ConvPass& pass, const SlabShape& wanted);
};

}  // namespace rigl
