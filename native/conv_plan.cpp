#include "conv_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cpu.h"

namespace rigl {
namespace {

constexpr std::size_t kMinTilesPerThread = 4;
// A tile of a few rows of a wide image shares less of its runs with itself than one of many: then wider tiles pay off.
constexpr std::int64_t kWideImage = 64;
constexpr std::size_t kMaxUnits = 65000;
constexpr std::size_t kMaxColumns = std::numeric_limits<std::uint32_t>::max();
// Size limit of the masks kept between runs, for one image size.
constexpr std::size_t kMaxMaskBytes = 1 << 20;

// Packing by runs pays off if it moves much less data, and if the rows of a run are whole units apart, so that loads
// stay aligned. Column indices count units within a block in 16 bits, and sources in 32.
bool runs_pay_off(const Geometry& geometry, std::size_t width, std::size_t channels) {
  const std::size_t row = static_cast<std::size_t>(geometry.out_width), rows = geometry.rows_in_run;
  if (geometry.gathered || rows == 1 || row % kUnit != 0 || rows > kMaxUnits || row > kMaxUnits) return false;
  const std::size_t run = width + (rows - 1) * row;
  const bool countable = run / kUnit < kMaxUnits && channels * geometry.runs.size() <= kMaxColumns / rows;
  return countable && 5 * geometry.runs.size() * run < 4 * geometry.taps.size() * width;
}

int max_vectors(const Geometry& geometry, const KernelTable& kernels) {
  const bool in_runs = geometry.rows_in_run > 1 && geometry.out_width % static_cast<std::int64_t>(kUnit) == 0;
  const bool wide = kernels.lanes == 16 && in_runs && geometry.out_width >= kWideImage;
  return wide ? kMaxWideVectors : kMaxVectors;
}

// Reorder the columns as (channel, run, row of the run).
SparseMatrix reorder_by_runs(const SparseMatrix& matrix, const Geometry& geometry) {
  SparseMatrix sorted;
  const auto taps = static_cast<std::uint32_t>(geometry.taps.size());
  const auto runs = static_cast<std::uint32_t>(geometry.runs.size());
  sorted.rows = matrix.rows;
  sorted.columns = matrix.columns / taps * runs * geometry.rows_in_run;
  sorted.row_ptr = matrix.row_ptr;
  std::vector<std::pair<std::uint32_t, float>> row;
  for (std::uint32_t r = 0; r < matrix.rows; ++r) {
    row.clear();
    for (std::size_t k = matrix.row_ptr[r]; k < matrix.row_ptr[r + 1]; ++k) {
      const std::uint32_t channel = matrix.col_idx[k] / taps, tap = matrix.col_idx[k] % taps;
      row.emplace_back((channel * runs + geometry.run_of[tap]) * geometry.rows_in_run + geometry.row_in_run[tap],
                       matrix.values[k]);
    }
    std::sort(row.begin(), row.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [column, value] : row) {
      sorted.col_idx.push_back(column);
      sorted.values.push_back(value);
    }
  }
  return sorted;
}

}  // namespace

PackPlan plan_packing(const Geometry& geometry, const std::vector<Tap>& taps, std::size_t first, std::size_t width,
                      std::size_t pitch) {
  PackPlan packing;
  for (const Tap& tap : taps) packing.offsets.push_back(tap.offset + static_cast<std::ptrdiff_t>(first));
  packing.masks.resize(taps.size() * pitch);
  packing.needed.resize(taps.size());
  make_masks(geometry, taps, first, width, pitch, packing.masks.data(), packing.needed.data());
  return packing;
}

// Few tiles cannot be balanced between threads: then rows are split too, though each group packs the pixels again.
std::uint32_t conv_groups(std::size_t tile_count, const ConvRequest& request) {
  const bool enough = tile_count * request.batch >= kMinTilesPerThread * static_cast<std::size_t>(request.threads);
  return request.threads == 1 || enough ? 1u : static_cast<std::uint32_t>(request.threads);
}

ConvPlan plan_conv(const SparseMatrix& matrix, const ConvRequest& request, const KernelTable& kernels) {
  ConvPlan plan{};
  plan.geometry = make_geometry(request.shape, request.taps, request.channels, request.height, request.width);
  plan.threads = request.threads;
  const std::size_t pixels = plan.geometry.pixels();
  plan.width = static_cast<std::size_t>(tile_width(pixels, kernels.lanes, max_vectors(plan.geometry, kernels)));
  plan.tile_count = (pixels + plan.width - 1) / plan.width;
  plan.groups = conv_groups(plan.tile_count, request);
  const Geometry& geometry = plan.geometry;
  const bool runs = runs_pay_off(geometry, plan.width, request.channels);
  TileShape shape;
  shape.groups = plan.groups;
  plan.sources = runs ? geometry.runs : geometry.taps;
  plan.overhang = runs ? (geometry.rows_in_run - 1) * static_cast<std::size_t>(geometry.out_width) : 0;
  // Whole vectors and whole units.
  const std::size_t run_pitch = round_up(plan.width + plan.overhang, std::max(kernels.lanes, static_cast<int>(kUnit)));
  plan.run_pitch = run_pitch;
  shape.taps = static_cast<std::uint32_t>(plan.sources.size());
  if (runs) {
    shape.columns = geometry.rows_in_run;
    shape.source_units = static_cast<std::uint32_t>(run_pitch / kUnit);
    shape.column_units = static_cast<std::uint32_t>(static_cast<std::size_t>(geometry.out_width) / kUnit);
  }
  const SparseMatrix sorted = runs ? reorder_by_runs(matrix, geometry) : SparseMatrix();
  size_blocks(runs ? sorted : matrix, run_pitch, plan.width, kernels.lanes, &shape);
  plan.tiles = plan_tiles(runs ? sorted : matrix, shape);
  if (!geometry.gathered && plan.sources.size() * plan.tile_count * run_pitch * sizeof(std::int32_t) <= kMaxMaskBytes) {
    for (std::size_t first = 0; first < pixels; first += plan.width) {
      const std::size_t part = std::min(plan.width, pixels - first) + plan.overhang;
      plan.packings.push_back(plan_packing(geometry, plan.sources, first, part, round_up(part, kernels.lanes)));
    }
  }
  return plan;
}

}  // namespace rigl
