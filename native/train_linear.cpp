#include "train_linear.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace rigl {
namespace {

constexpr Clip kNoClip = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()};
// Samples of a tile: as many vectors of sums as stay in registers, and tiles of a block that stay in the L1 cache.
constexpr std::int64_t kTileSamples = 64;
// Sums of products have no such limit: wider tiles add up their lanes less often.
constexpr std::int64_t kSampleFloats = 256;

std::size_t floats(std::int64_t count) { return static_cast<std::size_t>(count); }

std::int64_t batch_of(const TrainCall& call) { return call.height * call.width * call.batch; }

// Equal parts of a batch, in whole vectors.
struct Parts {
  std::int64_t batch, samples = 1;
  std::size_t pitch = 1;  // of a packed part

  Parts(std::int64_t whole, std::int64_t most, std::int64_t lanes) : batch(whole) {
    const std::int64_t parts = std::max<std::int64_t>(1, (batch + most - 1) / most);
    const std::int64_t vectors = ((batch + parts - 1) / parts + lanes - 1) / lanes;
    samples = std::max<std::int64_t>(1, parts == 1 ? batch : vectors * lanes);
    pitch = floats((samples + lanes - 1) / lanes * lanes);
  }
  std::int64_t count() const { return (batch + samples - 1) / samples; }
  std::int64_t begin(std::int64_t part) const { return part * samples; }
  std::int64_t size(std::int64_t part) const { return std::min(samples, batch - begin(part)); }
};

// Copy one part of some rows, with zeros up to the pitch, and a vector of zeros behind them.
void pack(const Parts& parts, std::int64_t part, const float* from, std::size_t rows, float* to) {
  const std::size_t size = floats(parts.size(part));
  from += parts.begin(part);
  for (std::size_t row = 0; row < rows; ++row, from += parts.batch, to += parts.pitch) {
    std::memcpy(to, from, size * sizeof(float));
    std::memset(to + size, 0, (parts.pitch - size) * sizeof(float));
  }
  std::memset(to, 0, 64 * sizeof(float));
}

struct Multiplication {
  const KernelTable& kernels;
  const Pass& pass;
  const float* values;
  const float* bias;  // or null
  const float* from;
  float* to;

  void run(const Parts& parts, std::int64_t part) const {
    float* source = scratch().activations.reserve(pass.sources * parts.pitch + 64);
    pack(parts, part, from, pass.sources, source);
    TileTask task{};
    task.x_pitch = task.acc_pitch = parts.pitch;
    task.width = static_cast<int>(parts.size(part));
    task.y_pitch = floats(parts.batch);
    task.clip = kNoClip;
    for (const PassGroup& group : pass.groups) {
      task.acc = scratch().acc.reserve((group.end - group.begin) * parts.pitch);
      task.bias = bias == nullptr ? nullptr : bias + group.begin;
      task.y = to + parts.begin(part) + group.begin * task.y_pitch;
      for (const PassBlock& block : group.blocks) {
        task.x = source + block.first_source * parts.pitch;
        task.first = &block == &group.blocks.front();
        task.last = &block == &group.blocks.back();
        kernels.multiply_tile(pass.block(block, values), task);
      }
    }
  }
};

double work(const Pass& pass, std::int64_t batch) {
  return kNsPerProduct * static_cast<double>(pass.order.size()) * static_cast<double>(batch);
}

void run_all(const Multiplication& product, std::int64_t batch, const Threads& threads) {
  const Parts parts(batch, std::min<std::int64_t>(kTileSamples, kMaxVectors * product.kernels.lanes),
                    product.kernels.lanes);
  parallel_for(threads.limited_to(work(product.pass, batch)), floats(parts.count()),
               [&](std::size_t part) { product.run(parts, static_cast<std::int64_t>(part)); });
}

}  // namespace

TrainLinear::TrainLinear(const TrainShape& shape, const std::int64_t* positions, std::size_t count,
                         const KernelTable& kernels)
    : kernels_(kernels), train_(train_kernels(kernels)), from_(count), values_(count) {
  const std::uint32_t inputs = static_cast<std::uint32_t>(shape.inputs);
  const std::uint32_t outputs = static_cast<std::uint32_t>(shape.outputs);
  std::vector<Link> links(count), reversed(count);
  for (std::size_t i = 0; i < count; ++i) {
    links[i] = {static_cast<std::uint32_t>(positions[i] / shape.inputs),
                static_cast<std::uint32_t>(positions[i] % shape.inputs)};
    reversed[i] = {links[i].source, links[i].row};
  }
  forward_ = plan_pass(outputs, inputs, links);
  transposed_ = plan_pass(inputs, outputs, reversed);
  std::vector<std::uint32_t> place(count);
  for (std::size_t i = 0; i < count; ++i) place[forward_.order[i]] = static_cast<std::uint32_t>(i);
  for (std::size_t i = 0; i < count; ++i) from_[i] = place[transposed_.order[i]];
}

void TrainLinear::forward(const TrainCall& call, const Threads& threads) {
  run_all({kernels_, forward_, call.values, call.bias, call.x, call.y}, batch_of(call), threads);
}

void TrainLinear::input_gradient(const TrainCall& call, const Threads& threads) {
  for (std::size_t i = 0; i < from_.size(); ++i) values_[i] = call.values[from_[i]];
  run_all({kernels_, transposed_, values_.data(), nullptr, call.dy, call.dx}, batch_of(call), threads);
}

void TrainLinear::weight_gradient(const TrainCall& call, const Threads& threads) {
  std::memset(call.dvalues, 0, forward_.order.size() * sizeof(float));
  const Parts parts(batch_of(call), kSampleFloats, kernels_.lanes);
  std::vector<std::pair<const PassGroup*, const PassBlock*>> blocks;
  for (const PassGroup& group : forward_.groups) {
    for (const PassBlock& block : group.blocks) blocks.push_back({&group, &block});
  }
  const Threads used = threads.limited_to(work(forward_, batch_of(call)));
  const std::size_t shares = std::min<std::size_t>(static_cast<std::size_t>(std::max(used.count, 1)), blocks.size());
  // Each share has blocks of its own, and packs all parts for them.
  parallel_for(used, shares, [&](std::size_t share) {
    float* source = scratch().activations.reserve(forward_.sources * parts.pitch + 64);
    float* gradients = scratch().outputs.reserve(forward_.rows * parts.pitch + 64);
    for (std::int64_t part = 0; part < parts.count(); ++part) {
      pack(parts, part, call.x, forward_.sources, source);
      pack(parts, part, call.dy, forward_.rows, gradients);
      for (std::size_t b = blocks.size() * share / shares; b < blocks.size() * (share + 1) / shares; ++b) {
        const PassBlock& block = *blocks[b].second;
        const SampleTask task = {source + block.first_source * parts.pitch,
                                 parts.pitch,
                                 gradients + blocks[b].first->begin * parts.pitch,
                                 parts.pitch,
                                 static_cast<int>(parts.size(part)),
                                 call.dvalues + block.first_value};
        train_.sample_tile(forward_.block(block, call.values), task);
      }
    }
  });
}

}  // namespace rigl
