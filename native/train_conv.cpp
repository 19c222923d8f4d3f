#include "train_conv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "huge_pages.h"

namespace rigl {
namespace {

constexpr std::int64_t kSegmentVectors = 16;  // of a gradient: the longer, the less often lanes are added up

std::int64_t vectors(std::int64_t floats, std::int64_t lanes) { return (floats + lanes - 1) / lanes; }

double work(const ConvPass& pass, const BandGrid& grid) {
  const std::int64_t pixels = (grid.row_end - grid.row_begin) * (grid.column_end - grid.column_begin);
  return kNsPerProduct * static_cast<double>(pass.links.size()) * static_cast<double>(pixels * grid.batch);
}

// One product: a pass over a source, and the target that it writes.
struct Convolution {
  const TrainKernels& kernels;
  const ConvPass& pass;
  const SlabOffsets& places;
  const float* values;
  const float* bias;
  const float* from;
  PixelGrid source;
  float* to;
  PixelGrid target;

  Slab slab() const { return {places.shape, pass.vertical, pass.horizontal}; }

  void run(const Band& band) const {
    const std::size_t floats = static_cast<std::size_t>(slab().channel()) * pass.sources + 64;
    float* packed = scratch().activations.reserve(floats);
    pack_slab(kernels, slab(), band, from, source, pass.sources, packed);
    for (std::int64_t row = 0; row < band.rows; ++row) run_row(band, row, packed);
  }

 private:
  void run_row(const Band& band, std::int64_t row, const float* packed) const {
    const std::int64_t lanes = kernels.lanes, samples = places.shape.samples;
    const bool flat = samples == target.batch && pass.horizontal.scale == 1;  // pixels follow each other in the target
    const std::int64_t floats = band.columns * samples, count = vectors(floats, lanes);
    const std::int64_t tiles = vectors(count, kMaxConvVectors);
    const std::int64_t pixel = (pass.vertical.scale * (band.row + row) + pass.vertical.shift) * target.width +
                               pass.horizontal.scale * band.column + pass.horizontal.shift;
    ConvTile tile{};
    tile.y_step = static_cast<std::size_t>(flat ? lanes : pass.horizontal.scale * target.batch);
    tile.valid = static_cast<int>(flat ? lanes : band.samples);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t begin = count * t / tiles, end = count * (t + 1) / tiles;
      tile.vectors = static_cast<int>(end - begin);
      tile.valid_last = static_cast<int>(flat ? std::min(lanes, floats - (end - 1) * lanes) : band.samples);
      tile.y = to + pixel * target.batch + band.first + begin * static_cast<std::int64_t>(tile.y_step);
      tile.y_pitch = static_cast<std::size_t>(target.pixels() * target.batch);
      run_tile(tile, packed + row * slab().row() + begin * lanes);
    }
  }

  void run_tile(const ConvTile& first, const float* packed) const {
    ConvTile tile = first;
    tile.acc = scratch().acc.reserve(static_cast<std::size_t>(pass.group_rows) * kMaxConvVectors * 16);
    for (const LinkBlock& block : pass.blocks) {
      tile.x = packed + block.first_source * slab().channel();
      tile.first = block.first;
      tile.last = block.last;
      tile.bias = bias == nullptr ? nullptr : bias + block.first_row;
      tile.y = first.y + block.first_row * first.y_pitch;
      kernels.convolve_tile(pass.block(block, places.offsets, values), tile);
    }
  }
};

void run_all(const Convolution& product, const BandGrid& grid, const Threads& threads) {
  const Threads used = threads.limited_to(work(product.pass, grid));
  parallel_for(used, static_cast<std::size_t>(grid.count()),
               [&](std::size_t i) { product.run(grid.band(static_cast<std::int64_t>(i))); });
}

// The slabs of a product with this target.
BandGrid plan_bands(const ConvPass& pass, const PixelGrid& target, std::int64_t lanes) {
  const WindowAxis &v = pass.vertical, &h = pass.horizontal;
  BandGrid grid = {{}, v.begin(), v.end(target.height), h.begin(), h.end(target.width), target.batch};
  const std::int64_t samples = slab_samples(target.batch, lanes, h.scale > 1);
  grid.shape =
      slab_shape(v, h, pass.sources, grid.row_end - grid.row_begin, grid.column_end - grid.column_begin, samples);
  return grid;
}

WindowAxis forward_axis(const TrainShape& shape, int axis) {
  const std::int64_t reach = (shape.kernel[axis] - 1) * shape.dilation[axis], step = shape.stride[axis];
  WindowAxis found;
  found.step = step;
  found.offset = -shape.pad[axis];
  found.phases = std::min(step, reach + 1);
  found.reach = reach / step;
  return found;
}

// The pixels stride · o + phase − pad of the input; each reads the outputs that its phase of the window reached.
WindowAxis input_axis(const TrainShape& shape, int axis, std::int64_t phase) {
  WindowAxis found;
  found.reach = std::max<std::int64_t>(0, (shape.kernel[axis] - 1) * shape.dilation[axis] - phase) / shape.stride[axis];
  found.offset = -found.reach;
  found.scale = shape.stride[axis];
  found.shift = phase - shape.pad[axis];
  return found;
}

}  // namespace

TrainConv::TrainConv(const TrainShape& shape, const std::int64_t* positions, std::size_t count,
                     const TrainKernels& kernels)
    : shape_(shape), kernels_(kernels) {
  const std::int64_t channels = shape.inputs / shape.groups, group_rows = shape.outputs / shape.groups;
  const std::int64_t area = shape.kernel[0] * shape.kernel[1];
  std::vector<ConvLink> links(count);
  std::vector<std::int64_t> taps(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t row = positions[i] / (channels * area), within = positions[i] % (channels * area);
    taps[i] = within % area;
    const std::int64_t down = taps[i] / shape.kernel[1] * shape.dilation[0];
    const std::int64_t right = taps[i] % shape.kernel[1] * shape.dilation[1];
    const WindowPlace place = {
        static_cast<std::uint16_t>(down % shape.stride[0]), static_cast<std::uint16_t>(down / shape.stride[0]),
        static_cast<std::uint16_t>(right % shape.stride[1]), static_cast<std::uint16_t>(right / shape.stride[1])};
    links[i] = {static_cast<std::uint32_t>(row),
                static_cast<std::uint32_t>(row / group_rows * channels + within / area), place};
  }
  const WindowAxes axes = {forward_axis(shape, 0), forward_axis(shape, 1)};
  const std::uint32_t rows = static_cast<std::uint32_t>(shape.outputs);
  const std::uint32_t sources = static_cast<std::uint32_t>(shape.inputs);
  forward_.pass = plan_conv_pass(rows, sources, axes, links, product_blocks(axes, rows, sources, count, kernels.lanes));
  plan_input_gradient(links, taps);
  plan_weight_gradient(links);
}

void TrainConv::plan_input_gradient(const std::vector<ConvLink>& links, const std::vector<std::int64_t>& taps) {
  const std::uint32_t rows = static_cast<std::uint32_t>(shape_.inputs);
  const std::uint32_t sources = static_cast<std::uint32_t>(shape_.outputs);
  for (std::int64_t a = 0; a < shape_.stride[0]; ++a) {
    for (std::int64_t b = 0; b < shape_.stride[1]; ++b) {
      const WindowAxes axes = {input_axis(shape_, 0, a), input_axis(shape_, 1, b)};
      std::vector<ConvLink> found;
      std::vector<std::uint32_t> index;
      for (std::size_t i = 0; i < links.size(); ++i) {
        const std::int64_t down = taps[i] / shape_.kernel[1] * shape_.dilation[0] - a;
        const std::int64_t right = taps[i] % shape_.kernel[1] * shape_.dilation[1] - b;
        if (down < 0 || right < 0 || down % shape_.stride[0] != 0 || right % shape_.stride[1] != 0) continue;
        const std::int64_t row = axes.vertical.reach - down / shape_.stride[0];
        const std::int64_t column = axes.horizontal.reach - right / shape_.stride[1];
        found.push_back({links[i].source,
                         links[i].row,
                         {0, static_cast<std::uint16_t>(row), 0, static_cast<std::uint16_t>(column)}});
        index.push_back(static_cast<std::uint32_t>(i));
      }
      Product product;
      const BlockSizes sizes = product_blocks(axes, rows, sources, found.size(), kernels_.lanes);
      product.pass = plan_conv_pass(rows, sources, axes, found, sizes);
      for (std::uint32_t& i : product.pass.order) i = index[i];
      product.from = from_forward(product.pass.order);
      product.values.resize(product.from.size());
      inputs_.push_back(std::move(product));
    }
  }
}

void TrainConv::plan_weight_gradient(const std::vector<ConvLink>& links) {
  const WindowAxes axes = {forward_.pass.vertical, forward_.pass.horizontal};
  const std::uint32_t rows = forward_.pass.rows;
  weights_.pass = plan_conv_pass(rows, forward_.pass.sources, axes, links, gradient_blocks(axes, rows, kernels_.lanes));
  weights_.from = from_forward(weights_.pass.order);
  weights_.values.resize(links.size());
}

std::vector<std::uint32_t> TrainConv::from_forward(const std::vector<std::uint32_t>& order) const {
  std::vector<std::uint32_t> place(forward_.pass.order.size()), found;
  for (std::size_t i = 0; i < place.size(); ++i) place[forward_.pass.order[i]] = static_cast<std::uint32_t>(i);
  for (const std::uint32_t i : order) found.push_back(place[i]);
  return found;
}

PixelGrid TrainConv::output(const TrainCall& call) const {
  return {shape_.output(0, call.height), shape_.output(1, call.width), call.batch};
}

void TrainConv::forward(const TrainCall& call, const Threads& threads) {
  const PixelGrid in = {call.height, call.width, call.batch}, out = output(call);
  const BandGrid grid = plan_bands(forward_.pass, out, kernels_.lanes);
  prefer_huge_pages(call.y, static_cast<std::size_t>(shape_.outputs * out.pixels() * out.batch));
  forward_.places.place(forward_.pass, grid.shape);
  run_all({kernels_, forward_.pass, forward_.places, call.values, call.bias, call.x, in, call.y, out}, grid, threads);
}

void TrainConv::input_gradient(const TrainCall& call, const Threads& threads) {
  const PixelGrid in = {call.height, call.width, call.batch}, out = output(call);
  prefer_huge_pages(call.dx, static_cast<std::size_t>(shape_.inputs * in.pixels() * in.batch));
  const bool partial = std::any_of(inputs_.begin(), inputs_.end(), [](const Product& p) { return p.from.empty(); });
  if (partial)
    std::memset(call.dx, 0, static_cast<std::size_t>(shape_.inputs * in.pixels() * in.batch) * sizeof(float));
  for (Product& product : inputs_) {
    if (product.from.empty()) continue;
    for (std::size_t i = 0; i < product.from.size(); ++i) product.values[i] = call.values[product.from[i]];
    const BandGrid grid = plan_bands(product.pass, in, kernels_.lanes);
    product.places.place(product.pass, grid.shape);
    run_all({kernels_, product.pass, product.places, product.values.data(), nullptr, call.dy, out, call.dx, in}, grid,
            threads);
  }
}

void TrainConv::weight_gradient(const TrainCall& call, const Threads& threads) {
  const PixelGrid in = {call.height, call.width, call.batch}, out = output(call);
  const ConvPass& pass = weights_.pass;
  const BandGrid grid = plan_bands(pass, out, kernels_.lanes);
  weights_.places.place(pass, grid.shape);
  const Slab slab = {grid.shape, pass.vertical, pass.horizontal}, own = {grid.shape, {}, {}, kernels_.lanes};
  const Threads used = threads.limited_to(work(pass, grid));
  const std::size_t parts =
      std::min<std::size_t>(static_cast<std::size_t>(std::max(used.count, 1)), pass.blocks.size());
  std::fill(weights_.values.begin(), weights_.values.end(), 0.0f);
  const std::int64_t lanes = kernels_.lanes;
  // Each part has blocks of its own, and packs their sources.
  parallel_for(used, parts, [&](std::size_t part) {
    const std::size_t begin = pass.blocks.size() * part / parts, end = pass.blocks.size() * (part + 1) / parts;
    const std::uint32_t first = pass.blocks[begin].first_source;
    const std::uint32_t channels = pass.blocks[end - 1].first_source + pass.blocks[end - 1].sources - first;
    float* x = scratch().activations.reserve(static_cast<std::size_t>(slab.channel()) * channels + 64);
    float* dy = scratch().outputs.reserve(static_cast<std::size_t>(own.channel()) * pass.rows + 64);
    for (std::int64_t i = 0; i < grid.count(); ++i) {
      const Band band = grid.band(i);
      pack_slab(kernels_, slab, band, call.x + first * in.pixels() * in.batch, in, channels, x);
      pack_slab(kernels_, own, band, call.dy, out, pass.rows, dy);
      const std::int64_t line = own.line(), pieces = vectors(vectors(line, lanes), kSegmentVectors);
      const std::int64_t rows = pieces > 1 ? 1 : std::max<std::int64_t>(1, kSegmentVectors / vectors(line, lanes));
      for (std::int64_t row = 0; row < band.rows; row += rows) {
        for (std::int64_t p = 0; p < pieces; ++p) {
          const std::int64_t from = vectors(line, lanes) * p / pieces * lanes;
          const std::int64_t to = std::min(line, vectors(line, lanes) * (p + 1) / pieces * lanes);
          CorrelationTile tile{};
          tile.x_row = static_cast<std::size_t>(slab.row());
          tile.dy = dy + row * line + from;
          tile.dy_pitch = static_cast<std::size_t>(own.channel());
          tile.dy_row = static_cast<std::size_t>(line);
          tile.rows = static_cast<int>(std::min(rows, band.rows - row));
          tile.floats = static_cast<int>(to - from);
          for (std::size_t b = begin; b < end; ++b) {
            const LinkBlock& block = pass.blocks[b];
            tile.x = x + (block.first_source - first) * slab.channel() + row * slab.row() + from;
            tile.sums = weights_.values.data() + block.first_value;
            kernels_.correlate_tile(pass.block(block, weights_.places.offsets, weights_.values.data()), tile);
          }
        }
      }
    }
  });
  for (std::size_t i = 0; i < weights_.from.size(); ++i) call.dvalues[weights_.from[i]] = weights_.values[i];
}

}  // namespace rigl
