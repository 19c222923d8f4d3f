// One product of a sparse linear layer in training: rows of connections times source features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace rigl {

// A connection as a pass sees it.
struct Link {
  std::uint32_t row, source;
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

// The connections of a product in the order in which it reads them: by group of rows, block of sources, row.
struct Pass {
  std::uint32_t rows = 0, sources = 0;
  std::vector<PassGroup> groups;
  std::vector<std::uint32_t> order;    // of each value: the index of its connection
  std::vector<std::uint16_t> col_idx;  // of each value: its source, relative to its block

  BlockView block(const PassBlock& which, const float* values) const {
    return {which.rows.data(), which.rows.size(), col_idx.data() + which.first_value, values + which.first_value};
  }
};

Pass plan_pass(std::uint32_t rows, std::uint32_t sources, const std::vector<Link>& links);

}  // namespace rigl
