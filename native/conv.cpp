#include "conv.h"

#include <algorithm>
#include <limits>

#include "cpu.h"
#include "geometry.h"

namespace rigl {
namespace {

constexpr std::size_t kMostPlans = 4;
constexpr std::size_t kTilesEach = 4;
constexpr std::size_t kMostUnits = 65000;
constexpr std::size_t kMostColumns = std::numeric_limits<std::uint32_t>::max();
// Masks that are kept from run to run, for one size of images.
constexpr std::size_t kMostMaskBytes = 1 << 20;

std::size_t rounded(std::size_t count, int lanes) {
  const std::size_t step = static_cast<std::size_t>(lanes);
  return (count + step - 1) / step * step;
}

// How one tile of pixels reads its planes.
struct TileReading {
  std::vector<std::ptrdiff_t> starts;
  std::vector<std::int32_t> masks;
  std::vector<std::uint8_t> needed;
};

TileReading read_tile(const Geometry& geometry, const std::vector<Tap>& taps, std::size_t first, std::size_t width,
                      std::size_t pitch) {
  TileReading reading;
  for (const Tap& tap : taps) reading.starts.push_back(tap.shift + static_cast<std::ptrdiff_t>(first));
  reading.masks.resize(taps.size() * pitch);
  reading.needed.resize(taps.size());
  make_masks(geometry, taps, first, width, pitch, reading.masks.data(), reading.needed.data());
  return reading;
}

// Packing by runs pays if it moves much less, and if the rows of a run are whole units apart, so that loads stay aligned.
// Columns count units within a block with 16 bits, and sources with 32.
constexpr std::size_t kUnit = 8;
bool worth_runs(const Geometry& geometry, std::size_t width, std::size_t channels) {
  const std::size_t row = static_cast<std::size_t>(geometry.out_width), rows = geometry.rows_in_run;
  if (geometry.gathered || rows == 1 || row % kUnit != 0 || rows > kMostUnits || row > kMostUnits) return false;
  const std::size_t run = width + (rows - 1) * row;
  const bool countable = run / kUnit < kMostUnits && channels * geometry.runs.size() <= kMostColumns / rows;
  return countable && 5 * geometry.runs.size() * run < 4 * geometry.taps.size() * width;
}

// Columns in the order (channel, run, row of the run).
SparseMatrix by_runs(const SparseMatrix& matrix, const Geometry& geometry) {
  SparseMatrix sorted;
  const auto taps = static_cast<std::uint32_t>(geometry.taps.size());
  const auto runs = static_cast<std::uint32_t>(geometry.runs.size());
  sorted.rows = matrix.rows;
  sorted.columns = matrix.columns / taps * runs * geometry.rows_in_run;
  sorted.starts = matrix.starts;
  std::vector<std::pair<std::uint32_t, float>> row;
  for (std::uint32_t r = 0; r < matrix.rows; ++r) {
    row.clear();
    for (std::size_t k = matrix.starts[r]; k < matrix.starts[r + 1]; ++k) {
      const std::uint32_t channel = matrix.places[k] / taps, tap = matrix.places[k] % taps;
      row.emplace_back((channel * runs + geometry.run_of[tap]) * geometry.rows_in_run + geometry.row_in[tap],
                       matrix.values[k]);
    }
    std::sort(row.begin(), row.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [place, value] : row) {
      sorted.places.push_back(place);
      sorted.values.push_back(value);
    }
  }
  return sorted;
}

// The places of the filter that have a weight: a filter may be far larger than what is in it.
std::vector<std::uint32_t> used_places(const SparseMatrix& matrix, std::uint32_t taps) {
  std::vector<std::uint32_t> places;
  if (taps <= matrix.places.size()) {
    std::vector<bool> seen(taps);
    for (const std::uint32_t each : matrix.places) seen[each % taps] = true;
    for (std::uint32_t tap = 0; tap < taps; ++tap) {
      if (seen[tap]) places.push_back(tap);
    }
    return places;
  }
  for (const std::uint32_t each : matrix.places) places.push_back(each % taps);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  if (places.empty()) places.push_back(0);
  return places;
}

// Columns (channel, place) become (channel, number of the place among those that are used).
SparseMatrix without_unused(SparseMatrix matrix, std::uint32_t taps, const std::vector<std::uint32_t>& places) {
  const auto used = static_cast<std::uint32_t>(places.size());
  if (used == taps) return matrix;
  for (std::uint32_t& each : matrix.places) {
    const auto number = std::lower_bound(places.begin(), places.end(), each % taps) - places.begin();
    each = each / taps * used + static_cast<std::uint32_t>(number);
  }
  matrix.columns = matrix.columns / taps * used;
  return matrix;
}

}  // namespace

struct SparseConv::Plan {
  Geometry geometry;
  int threads;
  std::uint32_t wanted_groups;
  std::size_t width, tile_count;
  TilePlan tiles;
  std::vector<Tap> sources;  // what is packed for each channel: taps, or runs of them
  std::size_t overhang;      // pixels that a run reads beyond its tile
  std::size_t run_pitch;     // floats from run to run
  std::vector<TileReading> readings;  // of all tiles, if that is not too much to keep
};

std::string check_axis(const Axis& axis) {
  if (axis.kernel < 1 || axis.stride < 1 || axis.dilation < 1 || axis.pad_begin < 0 || axis.pad_end < 0) {
    return "a convolution with a kernel, stride or dilation below 1 or a padding below 0";
  }
  // No filter is larger; it also keeps products of these numbers far from overflow.
  for (const std::int64_t each : {axis.kernel, axis.stride, axis.dilation, axis.pad_begin, axis.pad_end}) {
    if (each > 65536) return "a convolution with a kernel, stride, dilation or padding over 65536";
  }
  return "";
}

std::string check_conv(const SparseMatrix& matrix, const ConvShape& shape) {
  for (const Axis& axis : {shape.rows, shape.columns}) {
    const std::string wrong = check_axis(axis);
    if (!wrong.empty()) return wrong;
  }
  if (shape.taps() > matrix.columns || matrix.columns % shape.taps() != 0) {
    return "packed weights do not fit the shape of the kernel";
  }
  return "";
}

SparseConv::SparseConv(SparseMatrix matrix, const ConvShape& shape, const KernelTable& kernels)
    : channels_(matrix.columns / static_cast<std::size_t>(shape.taps())),
      places_(used_places(matrix, static_cast<std::uint32_t>(shape.taps()))),
      matrix_(without_unused(std::move(matrix), static_cast<std::uint32_t>(shape.taps()), places_)),
      shape_(shape),
      kernels_(kernels) {}

SparseMatMul& SparseConv::product() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!product_) product_ = std::make_unique<SparseMatMul>(matrix_, kernels_);
  return *product_;
}

// Roughly: every non-zero meets every pixel of the output, and every pixel is packed for each place of the filter.
double SparseConv::nanoseconds(const ConvCall& call) const {
  const double rows = static_cast<double>(shape_.rows.output(call.height));
  const double pixels = rows * static_cast<double>(shape_.columns.output(call.width) * call.batch);
  return pixels * (static_cast<double>(matrix_.values.size()) / 20 + matrix_.columns / 15.0 + matrix_.rows / 10.0);
}

void SparseConv::run(const ConvCall& call, const Threads& all) {
  if (call.batch == 0) return;
  const Threads threads = all.for_work(nanoseconds(call));
  // An image of one pixel under a filter of one place is a vector, unless that place lies on the padding.
  const auto one = [](const Axis& axis) { return axis.kernel == 1 && axis.pad_begin == 0 && axis.output(1) == 1; };
  if (call.height == 1 && call.width == 1 && one(shape_.rows) && one(shape_.columns) && call.residual == nullptr) {
    return product().run({call.x, call.batch, call.bias, call.y, false, false, call.clip}, threads);
  }
  const auto chosen = plan(call.height, call.width, call.batch, threads.count);
  if (chosen->geometry.pixels() == 0) return;
  // Planes of many images need not be there at once.
  const double floats = static_cast<double>(channels()) * static_cast<double>(chosen->geometry.plane_pitch);
  const bool planes = !chosen->geometry.direct && !chosen->geometry.gathered;
  const std::size_t together = planes ? std::max<std::size_t>(static_cast<std::size_t>(kMostPlanes / std::max(floats, 1.0)), 1)
                                      : call.batch;
  const std::size_t image = channels() * static_cast<std::size_t>(call.height * call.width);
  const std::size_t outputs = rows() * chosen->geometry.pixels();
  for (std::size_t first = 0; first < call.batch; first += together) {
    ConvCall part = call;
    part.batch = std::min(together, call.batch - first);
    part.x += first * image;
    part.y += first * outputs;
    if (part.residual != nullptr) part.residual += first * outputs;
    run_images(part, *chosen, threads);
  }
}

void SparseConv::run_images(const ConvCall& call, const Plan& plan, const Threads& threads) const {
  const std::size_t plane = static_cast<std::size_t>(call.height * call.width);
  const std::size_t pitch = static_cast<std::size_t>(plan.geometry.plane_pitch);
  const float* planes = call.x;
  if (!plan.geometry.direct && !plan.geometry.gathered) {
    float* split = prepared().floats(call.batch * channels() * pitch);
    for_each(threads, call.batch * channels(), [&](std::size_t i) {
      split_phases(plan.geometry, kernels_, call.x + i * plane, split + i * pitch);
    });
    planes = split;
  }
  const std::size_t groups = plan.tiles.groups.size(), tiles = plan.tile_count;
  for_each(threads, call.batch * tiles * groups, [&](std::size_t i) {
    run_tile(call, plan, planes, i / (tiles * groups), i / groups % tiles, i % groups);
  });
}

void SparseConv::run_tile(const ConvCall& call, const Plan& plan, const float* planes, std::size_t image,
                          std::size_t tile, std::size_t group_number) const {
  const RowGroup& group = plan.tiles.groups[group_number];
  const Geometry& geometry = plan.geometry;
  const std::size_t pixels = geometry.pixels(), first = tile * plan.width;
  const std::size_t plane = static_cast<std::size_t>(call.height * call.width);
  const std::size_t width = std::min(plan.width, pixels - first), pitch = rounded(width, kernels_.lanes);
  Scratch& mine = scratch();
  TileTask task{};
  task.sums = mine.sums.floats((group.end - group.begin) * pitch);
  task.sums_pitch = pitch;
  task.width = static_cast<int>(width);
  task.bias = call.bias == nullptr ? nullptr : call.bias + group.begin;
  task.clip = call.clip;
  const std::size_t offset = (image * matrix_.rows + group.begin) * pixels + first;
  task.y = call.y + offset;
  task.residual = call.residual == nullptr ? nullptr : call.residual + offset;
  task.y_pitch = pixels;
  const std::size_t run = rounded(width + plan.overhang, kernels_.lanes);
  // Runs of a narrower last tile keep the distance of the others: it is part of the indices.
  const std::size_t run_pitch = plan.overhang > 0 ? plan.run_pitch : pitch;
  float* packed = mine.activations.floats(plan.tiles.most_sources * run_pitch + kMostVectors * kUnit * 2);
  TileReading fresh;
  if (plan.readings.empty() && !geometry.gathered) fresh = read_tile(geometry, plan.sources, first, width + plan.overhang, run);
  const TileReading& reading = plan.readings.empty() ? fresh : plan.readings[tile];
  ShiftTask shifts{};
  shifts.planes = planes + image * channels() * static_cast<std::size_t>(geometry.plane_pitch);
  shifts.plane_limit = static_cast<std::ptrdiff_t>(channels()) * geometry.plane_pitch;
  shifts.plane_pitch = geometry.plane_pitch;
  shifts.shifts = reading.starts.data();
  shifts.masks = reading.masks.data();
  shifts.mask_needed = reading.needed.data();
  shifts.width = static_cast<int>(width + plan.overhang);
  task.x = packed;
  task.x_pitch = plan.overhang > 0 ? kUnit : pitch;
  for (std::size_t b = 0; b < group.blocks.size(); ++b) {
    const Block& block = group.blocks[b];
    if (geometry.gathered) {
      for (std::size_t s = 0; s < block.sources.size(); ++s) {
        const float* channel = call.x + (image * channels() + block.sources[s].channel) * plane;
        gather_pixels(geometry, geometry.taps[block.sources[s].tap], channel, first, width, packed + s * pitch, pitch);
      }
    } else {
      kernels_.pack_shifted(shifts, block.sources.data(), block.sources.size(), packed, run_pitch);
    }
    task.first = b == 0;
    task.last = b + 1 == group.blocks.size();
    kernels_.multiply_tile(block.view(), task);
  }
}

std::shared_ptr<const SparseConv::Plan> SparseConv::plan(std::int64_t height, std::int64_t width, std::size_t batch,
                                                         int threads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Few tiles do not come out even between threads: then rows are cut too, though each part packs the pixels anew.
  const auto groups_for = [&](const Plan& each) {
    const bool many = each.tile_count * batch >= kTilesEach * static_cast<std::size_t>(threads);
    return threads == 1 || many ? 1u : static_cast<std::uint32_t>(threads);
  };
  for (const auto& each : plans_) {
    if (each->geometry.height != height || each->geometry.width != width || each->threads != threads) continue;
    if (each->wanted_groups == groups_for(*each)) return each;
  }
  Plan fresh{};
  fresh.geometry = make_geometry(shape_, places_, channels_, height, width);
  fresh.threads = threads;
  const std::size_t pixels = fresh.geometry.pixels();
  fresh.width = static_cast<std::size_t>(tile_width(pixels, kernels_.lanes));
  fresh.tile_count = (pixels + fresh.width - 1) / fresh.width;
  fresh.wanted_groups = groups_for(fresh);
  const Geometry& geometry = fresh.geometry;
  const bool runs = worth_runs(geometry, fresh.width, channels_);
  TileShape shape;
  shape.groups = fresh.wanted_groups;
  fresh.sources = runs ? geometry.runs : geometry.taps;
  fresh.overhang = runs ? (geometry.rows_in_run - 1) * static_cast<std::size_t>(geometry.out_width) : 0;
  // Whole vectors and whole units.
  const std::size_t run_pitch = rounded(fresh.width + fresh.overhang, std::max(kernels_.lanes, static_cast<int>(kUnit)));
  fresh.run_pitch = run_pitch;
  shape.taps = static_cast<std::uint32_t>(fresh.sources.size());
  if (runs) {
    shape.columns = geometry.rows_in_run;
    shape.source_units = static_cast<std::uint32_t>(run_pitch / kUnit);
    shape.column_units = static_cast<std::uint32_t>(static_cast<std::size_t>(geometry.out_width) / kUnit);
  }
  const SparseMatrix sorted = runs ? by_runs(matrix_, geometry) : SparseMatrix();
  size_blocks(runs ? sorted : matrix_, run_pitch, fresh.width, &shape);
  fresh.tiles = plan_tiles(runs ? sorted : matrix_, shape);
  if (!geometry.gathered && fresh.sources.size() * fresh.tile_count * run_pitch * sizeof(std::int32_t) <= kMostMaskBytes) {
    for (std::size_t first = 0; first < pixels; first += fresh.width) {
      const std::size_t part = std::min(fresh.width, pixels - first) + fresh.overhang;
      fresh.readings.push_back(read_tile(geometry, fresh.sources, first, part, rounded(part, kernels_.lanes)));
    }
  }
  if (plans_.size() == kMostPlans) plans_.erase(plans_.begin());
  plans_.push_back(std::make_shared<Plan>(std::move(fresh)));
  return plans_.back();
}

}  // namespace rigl
