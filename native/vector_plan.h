// Non-zeros arranged for products with a single vector: rows in slices, one in each lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "packed.h"

namespace rigl {

// Weights as the kernels read them: of 32, 16 or 8 bits.
struct StoredValues {
  ValueKind kind = ValueKind::kFloat32;
  std::vector<unsigned char> bytes;

  // Add a weight that this kind holds exactly; one of 8 bits is a multiple of the scale.
  void add(float value, float scale);
  bool empty() const { return bytes.empty(); }
  void fit() { bytes.shrink_to_fit(); }
};

struct SliceGroup {
  std::vector<std::uint32_t> lengths, rows;
  std::vector<std::uint16_t> col_idx;
  StoredValues values;
  std::uint32_t begin = 0, end = 0;  // rows
  std::uint32_t first_column = 0;    // of the columns this group reads
  bool first = true, last = true;    // among the groups of the same rows

  SliceView view(std::uint32_t row_limit) const;
};

// The scales of rows whose weights are stored in 8 bits; empty for others.
struct RowScales {
  std::vector<float> scales;

  const float* row_scales() const { return scales.empty() ? nullptr : scales.data(); }
};

struct SlicePlan : RowScales {
  std::vector<std::vector<SliceGroup>> groups;  // [row groups][column blocks]
  std::uint32_t block_columns = 0;
  std::uint32_t rows = 0;
};

struct WindowGroup {
  std::uint32_t begin = 0, end = 0;  // rows
  std::vector<std::uint32_t> entry_counts, rows;
  std::vector<WindowEntry> entries;
  std::vector<std::uint8_t> positions;
  StoredValues values;
  SliceGroup rest;  // the non-zeros that too few rows of a slice have: columns are places in the windows

  WindowView view(std::uint32_t row_limit) const;
};

struct WindowPlan : RowScales {
  std::vector<WindowGroup> groups;
  std::size_t windows = 0;
  std::uint32_t rows = 0;
};

// The columns of a window besides the zero at its end.
constexpr std::uint32_t kWindowColumns = kWindow - 1;
// Whether all places in windows can be addressed.
bool fits_windows(std::uint32_t columns);
WindowPlan plan_windows(const SparseMatrix& matrix, const KernelTable& kernels, std::uint32_t groups);

SlicePlan plan_slices(const SparseMatrix& matrix, const KernelTable& kernels, std::uint32_t groups);

}  // namespace rigl
