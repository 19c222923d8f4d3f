#include "train_layer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace rigl {
namespace {

constexpr Clip kNoClip = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()};
// Floats of a tile: as many vectors of sums as stay in registers, and tiles of a block that stay in the L1 cache.
constexpr std::int64_t kTileFloats = 64;
// Sums of products have no such limit: wider tiles add up their lanes less often.
constexpr std::int64_t kSampleFloats = 256;
constexpr double kNsPerProduct = 0.02;  // to choose how many threads are worth it

struct Image {
  std::int64_t height, width, batch;
  std::int64_t pixels() const { return height * width; }
};

// How an image is cut into tiles: some pixels of a row for the whole batch, or one pixel for a part of the batch.
struct Tiling {
  std::int64_t pixels = 1, samples = 1;
  std::size_t pitch = 1;  // from pixel to pixel in a packed tile

  Tiling(const Image& image, std::int64_t floats, std::int64_t lanes, bool one_pixel) {
    floats = std::min(floats, kMaxVectors * lanes);
    *this = Tiling(image, floats, lanes, one_pixel, 0);
  }
  Tiling(const Image& image, std::int64_t floats, std::int64_t lanes, bool one_pixel, int) {
    if (image.batch * 2 <= floats && !one_pixel) {
      pixels = std::clamp<std::int64_t>(floats / image.batch, 1, std::min(image.width, kMaxPixels));
    }
    const std::int64_t parts = (image.batch + floats - 1) / floats;
    const std::int64_t vectors = ((image.batch + parts - 1) / parts + lanes - 1) / lanes;
    samples = parts == 1 ? image.batch : vectors * lanes;
    pitch = static_cast<std::size_t>(pixels == 1 ? (samples + lanes - 1) / lanes * lanes : samples);
  }
  std::int64_t parts(const Image& image) const { return (image.batch + samples - 1) / samples; }
};

// One tile: the first of its pixels in the output of a pass, how many there are, and its part of the batch.
struct Tile {
  std::int64_t row, column, pixels, first, samples;
  std::int64_t width() const { return pixels * samples; }
};

// Tiles are numbered by part of the batch, row and column.
struct Grid {
  Tiling tiling;
  std::int64_t row_begin, row_end, column_begin, column_end, batch;

  std::int64_t across() const { return (column_end - column_begin + tiling.pixels - 1) / tiling.pixels; }
  std::int64_t count() const {
    if (row_end <= row_begin || column_end <= column_begin) return 0;
    return (batch + tiling.samples - 1) / tiling.samples * (row_end - row_begin) * across();
  }
  Tile tile(std::int64_t index) const {
    const std::int64_t column = column_begin + index % across() * tiling.pixels;
    const std::int64_t rest = index / across(), rows = row_end - row_begin;
    const std::int64_t first = rest / rows * tiling.samples;
    return {row_begin + rest % rows, column, std::min(tiling.pixels, column_end - column), first,
            std::min(tiling.samples, batch - first)};
  }
};

// The source of a pass, packed for a tile: [channels][rows of the window][phases][pixels][pitch].
struct Packing {
  const Pass& pass;
  const Tiling& tiling;
  const float* from;
  Image image;

  std::int64_t across() const { return tiling.pixels + pass.window.columns - 1; }
  std::size_t channel_floats() const { return pass.places(tiling.pixels) * tiling.pitch; }
  // A whole vector may be read from the last pixel on.
  std::size_t floats() const { return pass.sources * channel_floats() + 64; }

  void pack(const Tile& tile, float* to) const {
    const Window& window = pass.window;
    for (std::size_t source = 0; source < pass.sources; ++source) {
      const float* plane = from + static_cast<std::int64_t>(source) * image.pixels() * image.batch;
      for (const std::int64_t row_offset : window.row_offsets) {
        const std::int64_t row = window.row_step * tile.row + row_offset;
        for (const std::int64_t column_offset : window.column_offsets) {
          const bool inside = row >= 0 && row < image.height;
          const float* line = inside ? plane + row * image.width * image.batch : nullptr;
          pack_line(tile, line, window.column_step * tile.column + column_offset, to);
          to += static_cast<std::size_t>(across()) * tiling.pitch;
        }
      }
    }
    std::memset(to, 0, 64 * sizeof(float));
  }

 private:
  void pack_line(const Tile& tile, const float* line, std::int64_t column, float* to) const {
    const std::int64_t step = pass.window.column_step;
    const std::size_t pitch = tiling.pitch;
    if (line != nullptr && step == 1 && tile.samples == image.batch &&
        static_cast<std::int64_t>(pitch) == image.batch) {
      const std::int64_t begin = std::clamp<std::int64_t>(-column, 0, across());
      const std::int64_t end = std::clamp<std::int64_t>(image.width - column, begin, across());
      std::memset(to, 0, static_cast<std::size_t>(begin) * pitch * sizeof(float));
      std::memcpy(to + static_cast<std::size_t>(begin) * pitch, line + (column + begin) * image.batch,
                  static_cast<std::size_t>(end - begin) * pitch * sizeof(float));
      std::memset(to + static_cast<std::size_t>(end) * pitch, 0,
                  static_cast<std::size_t>(across() - end) * pitch * sizeof(float));
      return;
    }
    for (std::int64_t j = 0; j < across(); ++j, to += pitch) {
      const std::int64_t at = column + j * step;
      const bool inside = line != nullptr && at >= 0 && at < image.width;
      const std::size_t samples = inside ? static_cast<std::size_t>(tile.samples) : 0;
      if (inside) std::memcpy(to, line + at * image.batch + tile.first, samples * sizeof(float));
      std::memset(to + samples, 0, (pitch - samples) * sizeof(float));
    }
  }
};

// Where the tiles of a product go: the pixel of tile column q, row r is (step · r + offset) of an image.
struct Target {
  float* to;
  Image image;
  std::int64_t step[2], offset[2];
  const float* bias;

  float* at(const Tile& tile) const {
    const std::int64_t row = step[0] * tile.row + offset[0], column = step[1] * tile.column + offset[1];
    return to + (row * image.width + column) * image.batch + tile.first;
  }
};

void multiply(const KernelTable& kernels, const Packing& packing, const Placement& placement, const float* values,
              const Target& target, const Tile& tile) {
  const Pass& pass = packing.pass;
  float* source = scratch().activations.reserve(packing.floats());
  packing.pack(tile, source);
  const std::size_t lanes = static_cast<std::size_t>(kernels.lanes);
  const std::size_t pitch = (static_cast<std::size_t>(tile.width()) + lanes - 1) / lanes * lanes;
  const std::size_t plane = static_cast<std::size_t>(target.image.pixels() * target.image.batch);
  TileTask task{};
  task.x_pitch = packing.tiling.pitch;
  task.acc_pitch = pitch;
  task.width = static_cast<int>(tile.width());
  task.y_pitch = plane;
  task.clip = kNoClip;
  for (const PassGroup& group : pass.groups) {
    task.acc = scratch().acc.reserve((group.end - group.begin) * pitch);
    task.bias = target.bias == nullptr ? nullptr : target.bias + group.begin;
    task.y = target.at(tile) + group.begin * plane;
    for (const PassBlock& block : group.blocks) {
      task.x = source + block.first_source * packing.channel_floats();
      task.first = &block == &group.blocks.front();
      task.last = &block == &group.blocks.back();
      kernels.multiply_tile({block.rows.data(), block.rows.size(), placement.col_idx.data() + block.first_value,
                             values + block.first_value},
                            task);
    }
  }
}

std::int64_t round_up(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

const TrainKernels& train_kernels(const KernelTable& kernels) {
  const std::string name = kernels.name;
  const TrainKernels* found = name == "avx512" ? avx512_train_kernels()
                              : name == "avx2" ? avx2_train_kernels()
                                               : nullptr;
  return found != nullptr ? *found : *portable_train_kernels();
}

const char* check_train(const TrainShape& shape, const std::int64_t* positions, std::size_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t size : {shape.inputs, shape.outputs, shape.groups, shape.kernel[0], shape.kernel[1],
                                  shape.stride[0], shape.stride[1], shape.dilation[0], shape.dilation[1]}) {
    if (size < 1 || size > kMost) return "a size of the layer is not positive";
  }
  if (shape.pad[0] < 0 || shape.pad[1] < 0) return "the padding is negative";
  if (shape.kernel[0] > 255 || shape.kernel[1] > 255) return "the kernel is larger than 255 pixels";
  if (shape.inputs % shape.groups != 0 || shape.outputs % shape.groups != 0)
    return "the groups do not fit the channels";
  if (count > std::numeric_limits<std::uint32_t>::max()) return "there are too many connections";
  const std::int64_t row = shape.inputs / shape.groups * shape.kernel[0] * shape.kernel[1];
  for (std::size_t i = 0; i < count; ++i) {
    const bool ascends = i == 0 ? positions[0] >= 0 : positions[i] > positions[i - 1];
    if (!ascends || positions[i] / row >= shape.outputs) return "the positions do not ascend within the weight";
  }
  return nullptr;
}

TrainLayer::TrainLayer(const TrainShape& shape, const std::int64_t* positions, std::size_t count,
                       const KernelTable& kernels)
    : shape_(shape), kernels_(kernels), train_(train_kernels(kernels)) {
  if (shape.kernel[0] * shape.kernel[1] > 1 || shape.stride[0] * shape.stride[1] > 1 ||
      shape.pad[0] + shape.pad[1] > 0) {
    conv_ = std::make_unique<TrainConv>(shape, positions, count, train_);
    return;
  }
  const std::int64_t channels = shape.inputs / shape.groups, group_rows = shape.outputs / shape.groups;
  const std::int64_t taps = shape.kernel[0] * shape.kernel[1];
  Window window;
  window.row_step = shape.stride[0];
  window.column_step = shape.stride[1];
  for (std::int64_t k = 0; k < shape.kernel[0]; ++k) window.row_offsets.push_back(k * shape.dilation[0] - shape.pad[0]);
  const std::int64_t reach = (shape.kernel[1] - 1) * shape.dilation[1];
  for (std::int64_t p = 0; p < std::min(shape.stride[1], reach + 1); ++p) {
    window.column_offsets.push_back(p - shape.pad[1]);
  }
  window.columns = reach / shape.stride[1] + 1;
  std::vector<Link> links(count);
  std::vector<std::int64_t> tap_of(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t row = positions[i] / (channels * taps), within = positions[i] % (channels * taps);
    const std::int64_t tap = within % taps, column = tap % shape.kernel[1] * shape.dilation[1];
    tap_of[i] = tap;
    links[i] = {static_cast<std::uint32_t>(row),
                static_cast<std::uint32_t>(row / group_rows * channels + within / taps),
                static_cast<std::uint16_t>(tap / shape.kernel[1]), static_cast<std::uint16_t>(column % shape.stride[1]),
                static_cast<std::uint16_t>(column / shape.stride[1])};
  }
  forward_ = plan_pass(static_cast<std::uint32_t>(shape.outputs), static_cast<std::uint32_t>(shape.inputs),
                       std::move(window), links);
  plan_phases(links, tap_of);
}

void TrainLayer::plan_phases(const std::vector<Link>& links, const std::vector<std::int64_t>& taps) {
  std::vector<std::uint32_t> place(links.size());
  for (std::size_t i = 0; i < links.size(); ++i) place[forward_.order[i]] = static_cast<std::uint32_t>(i);
  for (std::int64_t a = 0; a < shape_.stride[0]; ++a) {
    for (std::int64_t b = 0; b < shape_.stride[1]; ++b) {
      const std::int64_t rows = ((shape_.kernel[0] - 1) * shape_.dilation[0]) / shape_.stride[0] + 1;
      const std::int64_t columns = ((shape_.kernel[1] - 1) * shape_.dilation[1]) / shape_.stride[1] + 1;
      Phase phase;
      std::vector<Link> found;
      std::vector<std::uint32_t> origin;
      for (std::size_t i = 0; i < links.size(); ++i) {
        const std::int64_t row = taps[i] / shape_.kernel[1] * shape_.dilation[0] - a;
        const std::int64_t column = taps[i] % shape_.kernel[1] * shape_.dilation[1] - b;
        if (row % shape_.stride[0] != 0 || column % shape_.stride[1] != 0 || row < 0 || column < 0) continue;
        found.push_back({links[i].source, links[i].row, static_cast<std::uint16_t>(row / shape_.stride[0]), 0,
                         static_cast<std::uint16_t>(columns - 1 - column / shape_.stride[1])});
        origin.push_back(place[i]);
      }
      Window window;
      for (std::int64_t e = 0; e < rows; ++e) window.row_offsets.push_back(-e);
      window.column_offsets.push_back(1 - columns);
      window.columns = columns;
      phase.offset[0] = a - shape_.pad[0];
      phase.offset[1] = b - shape_.pad[1];
      phase.pass = plan_pass(static_cast<std::uint32_t>(shape_.inputs), static_cast<std::uint32_t>(shape_.outputs),
                             std::move(window), found);
      for (const std::uint32_t i : phase.pass.order) phase.from.push_back(origin[i]);
      phase.values.resize(phase.from.size());
      phases_.push_back(std::move(phase));
    }
  }
}

std::int64_t TrainLayer::output(int axis, std::int64_t size) const {
  const std::int64_t reach = shape_.dilation[axis] * (shape_.kernel[axis] - 1) + 1;
  const std::int64_t room = size + 2 * shape_.pad[axis] - reach;
  return room < 0 ? 0 : room / shape_.stride[axis] + 1;
}

void TrainLayer::forward(const TrainCall& call, const Threads& threads) {
  if (conv_) return conv_->forward(call, threads);
  const Image in = {call.height, call.width, call.batch};
  const Image out = {output(0, call.height), output(1, call.width), call.batch};
  const Grid grid = {Tiling(out, kTileFloats, kernels_.lanes, false), 0, out.height, 0, out.width, out.batch};
  if (grid.count() == 0) return;
  forward_.place(grid.tiling.pixels, &forward_places_);
  const Packing packing = {forward_, grid.tiling, call.x, in};
  const Target target = {call.y, out, {1, 1}, {0, 0}, call.bias};
  const double work =
      kNsPerProduct * static_cast<double>(forward_.links.size()) * static_cast<double>(out.pixels() * out.batch);
  parallel_for(threads.limited_to(work), static_cast<std::size_t>(grid.count()), [&](std::size_t i) {
    multiply(kernels_, packing, forward_places_, call.values, target, grid.tile(static_cast<std::int64_t>(i)));
  });
}

void TrainLayer::backward(const TrainCall& call, const Threads& threads) {
  if (conv_) return conv_->backward(call, threads);
  if (call.dx != nullptr) input_gradient(call, threads);
  if (call.dvalues != nullptr) weight_gradient(call, threads);
}

void TrainLayer::input_gradient(const TrainCall& call, const Threads& threads) {
  const Image in = {call.height, call.width, call.batch};
  const Image out = {output(0, call.height), output(1, call.width), call.batch};
  const bool partial = std::any_of(phases_.begin(), phases_.end(), [](const Phase& each) { return each.from.empty(); });
  if (partial || out.pixels() == 0) {
    std::memset(call.dx, 0, static_cast<std::size_t>(shape_.inputs * in.pixels() * in.batch) * sizeof(float));
  }
  if (out.pixels() == 0) return;
  for (Phase& phase : phases_) {
    if (phase.from.empty()) continue;
    for (std::size_t i = 0; i < phase.from.size(); ++i) phase.values[i] = call.values[phase.from[i]];
    // Pixels stride · u + offset within the input.
    std::int64_t begin[2], end[2];
    for (int axis = 0; axis < 2; ++axis) {
      const std::int64_t size = axis == 0 ? in.height : in.width;
      begin[axis] = phase.offset[axis] >= 0 ? 0 : round_up(-phase.offset[axis], shape_.stride[axis]);
      end[axis] = std::max(begin[axis], round_up(size - phase.offset[axis], shape_.stride[axis]));
    }
    const Tiling tiling(in, kTileFloats, kernels_.lanes, shape_.stride[1] > 1);
    const Grid grid = {tiling, begin[0], end[0], begin[1], end[1], in.batch};
    phase.pass.place(grid.tiling.pixels, &phase.placement);
    const Packing packing = {phase.pass, grid.tiling, call.dy, out};
    const Target target = {
        call.dx, in, {shape_.stride[0], shape_.stride[1]}, {phase.offset[0], phase.offset[1]}, nullptr};
    const double work =
        kNsPerProduct * static_cast<double>(phase.from.size()) * static_cast<double>(out.pixels() * out.batch);
    parallel_for(threads.limited_to(work), static_cast<std::size_t>(grid.count()), [&](std::size_t i) {
      multiply(kernels_, packing, phase.placement, phase.values.data(), target,
               grid.tile(static_cast<std::int64_t>(i)));
    });
  }
}

void TrainLayer::weight_gradient(const TrainCall& call, const Threads& threads) {
  const Image in = {call.height, call.width, call.batch};
  const Image out = {output(0, call.height), output(1, call.width), call.batch};
  std::memset(call.dvalues, 0, forward_.links.size() * sizeof(float));
  const Grid grid = {Tiling(out, kSampleFloats, kernels_.lanes, false, 0), 0, out.height, 0, out.width, out.batch};
  if (grid.count() == 0) return;
  forward_.place(grid.tiling.pixels, &sample_places_);
  const Packing packing = {forward_, grid.tiling, call.x, in};
  std::vector<std::pair<const PassGroup*, const PassBlock*>> blocks;
  for (const PassGroup& group : forward_.groups) {
    for (const PassBlock& block : group.blocks) blocks.push_back({&group, &block});
  }
  const double work =
      kNsPerProduct * static_cast<double>(forward_.links.size()) * static_cast<double>(out.pixels() * out.batch);
  const Threads used = threads.limited_to(work);
  const std::size_t parts = std::min<std::size_t>(static_cast<std::size_t>(std::max(used.count, 1)), blocks.size());
  const std::size_t lanes = static_cast<std::size_t>(kernels_.lanes);
  // Each part has blocks of its own, and packs all tiles for them.
  parallel_for(used, parts, [&](std::size_t part) {
    float* source = scratch().activations.reserve(packing.floats());
    for (std::int64_t i = 0; i < grid.count(); ++i) {
      const Tile tile = grid.tile(i);
      packing.pack(tile, source);
      const std::size_t width = static_cast<std::size_t>(tile.width()), pitch = (width + lanes - 1) / lanes * lanes;
      float* gradients = scratch().outputs.reserve(forward_.rows * pitch);
      for (std::size_t row = 0; row < forward_.rows; ++row) {
        const std::int64_t pixel = (static_cast<std::int64_t>(row) * out.height + tile.row) * out.width + tile.column;
        std::memcpy(gradients + row * pitch, call.dy + pixel * out.batch + tile.first, width * sizeof(float));
        std::memset(gradients + row * pitch + width, 0, (pitch - width) * sizeof(float));
      }
      for (std::size_t b = blocks.size() * part / parts; b < blocks.size() * (part + 1) / parts; ++b) {
        const PassGroup& group = *blocks[b].first;
        const PassBlock& block = *blocks[b].second;
        const SampleTask task = {source + block.first_source * packing.channel_floats(),
                                 grid.tiling.pitch,
                                 gradients + group.begin * pitch,
                                 pitch,
                                 static_cast<int>(width),
                                 call.dvalues + block.first_value};
        train_.sample_tile({block.rows.data(), block.rows.size(), sample_places_.col_idx.data() + block.first_value,
                            call.values + block.first_value},
                           task);
      }
    }
  });
}

}  // namespace rigl
