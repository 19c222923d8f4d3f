#include "attention.h"

#include <algorithm>
#include <cstring>

#include "tiles.h"

namespace rigl {
namespace {

// Nanoseconds of a product and of an exponential; both are about the same for all instruction sets with vectors.
constexpr double kProductCost = 0.025, kExpCost = 0.2;

// Some tokens of a value and the features of one head.
struct Part {
  std::size_t first, count;  // tokens, counted over all samples
  std::size_t feature, features;
};

// Copy a part as [features][pitch].
void load_columns(const AttentionInput& input, const Tiles& tiles, const KernelTable& kernels, const Part& part,
                  float* out, std::size_t pitch) {
  if (!input.by_column) {
    const float* from = input.data + part.first * input.features + part.feature;
    return kernels.transpose(from, input.features, part.count, part.features, out, pitch);
  }
  for (std::size_t f = 0; f < part.features; ++f) {
    tiles.each_piece(part.first, part.count, part.feature + f, input.features,
                     [&](std::size_t index, std::size_t column, std::size_t count) {
                       std::memcpy(out + f * pitch + column, input.data + index, count * sizeof(float));
                     });
  }
}

// Copy a part as [tokens][features].
void load_rows(const AttentionInput& input, const Tiles& tiles, const KernelTable& kernels, const Part& part,
               float* out) {
  if (!input.by_column) {
    for (std::size_t t = 0; t < part.count; ++t) {
      const float* from = input.data + (part.first + t) * input.features + part.feature;
      std::memcpy(out + t * part.features, from, part.features * sizeof(float));
    }
    return;
  }
  tiles.each_piece(part.first, part.count, part.feature, input.features,
                   [&](std::size_t index, std::size_t column, std::size_t count) {
                     const std::size_t pitch = tiles.width_of((part.first + column) / tiles.width);
                     kernels.transpose(input.data + index, pitch, part.features, count, out + column * part.features,
                                       part.features);
                   });
}

class Attention {
 public:
  Attention(const AttentionCall& call, const KernelTable& kernels)
      : call_(call),
        kernels_(kernels),
        query_tiles_(call.batch * call.queries, kernels),
        key_tiles_(call.batch * call.keys, kernels),
        width_(static_cast<std::size_t>(kQueryVectors * kernels.lanes)) {}

  // Queries [begin, end) of one head of one sample.
  void run(std::size_t sample, std::size_t head, std::size_t begin, std::size_t end) const {
    Scratch& buffers = scratch();
    float* k = buffers.activations.reserve(call_.keys * (call_.size + call_.v_size) + call_.size * width_);
    float* v = k + call_.size * call_.keys;
    float* q = v + call_.v_size * call_.keys;
    const std::size_t first = sample * call_.keys;
    load_columns(call_.k, key_tiles_, kernels_, {first, call_.keys, call_.k.first + head * call_.size, call_.size}, k,
                 call_.keys);
    load_rows(call_.v, key_tiles_, kernels_, {first, call_.keys, call_.v.first + head * call_.v_size, call_.v_size}, v);
    for (std::size_t at = begin; at < end; at += width_) {
      run_queries(sample, head, {sample * call_.queries + at, std::min(width_, end - at), 0, 0}, {q, k, v});
    }
  }

 private:
  struct Packed {
    float* q;
    const float *k, *v;
  };

  void run_queries(std::size_t sample, std::size_t head, Part part, const Packed& packed) const {
    const std::size_t lanes = static_cast<std::size_t>(kernels_.lanes), width = part.count <= lanes ? lanes : width_;
    part.feature = call_.q.first + head * call_.size;
    part.features = call_.size;
    std::fill(packed.q, packed.q + call_.size * width, 0.0f);
    load_columns(call_.q, query_tiles_, kernels_, part, packed.q, width);
    for (std::size_t i = 0; i < call_.size * width; ++i) packed.q[i] *= call_.scale;
    Scratch& buffers = scratch();
    const bool masked = call_.mask.data != nullptr;
    float* scores = buffers.acc.reserve(call_.keys * width * (masked ? 2 : 1));
    float* y = buffers.outputs.reserve(call_.v_size * width);
    float* mask = masked ? scores + call_.keys * width : nullptr;
    if (masked) load_mask(sample, head, part.first - sample * call_.queries, part.count, mask, width);
    kernels_.attend({packed.q, packed.k, packed.v, mask, call_.size, call_.v_size, call_.keys, call_.keys, call_.v_size,
                     static_cast<int>(width), scores, y});
    store_output(part, head, y, width);
  }

  void load_mask(std::size_t sample, std::size_t head, std::size_t query, std::size_t count, float* out,
                 std::size_t width) const {
    const AttentionMask& mask = call_.mask;
    const float* from = mask.data + sample * mask.batch_pitch + head * mask.head_pitch + query * mask.query_pitch;
    for (std::size_t key = 0; key < call_.keys; ++key, from += mask.key_pitch, out += width) {
      for (std::size_t i = 0; i < width; ++i) out[i] = from[std::min(i, count - 1) * mask.query_pitch];
    }
  }

  void store_output(const Part& part, std::size_t head, const float* y, std::size_t width) const {
    const std::size_t features = call_.heads * call_.v_size, feature = head * call_.v_size;
    if (!call_.y_by_column) {
      float* to = call_.y + part.first * features + feature;
      return kernels_.transpose(y, width, call_.v_size, part.count, to, features);
    }
    for (std::size_t f = 0; f < call_.v_size; ++f) {
      query_tiles_.each_piece(part.first, part.count, feature + f, features,
                              [&](std::size_t index, std::size_t column, std::size_t count) {
                                std::memcpy(call_.y + index, y + f * width + column, count * sizeof(float));
                              });
    }
  }

  const AttentionCall& call_;
  const KernelTable& kernels_;
  Tiles query_tiles_, key_tiles_;
  std::size_t width_;
};

}  // namespace

void run_attention(const AttentionCall& call, const KernelTable& kernels, const Threads& all) {
  const std::size_t pairs = call.batch * call.heads;
  if (pairs == 0 || call.queries == 0) return;
  if (call.keys == 0) {
    std::fill(call.y, call.y + pairs * call.queries * call.v_size, 0.0f);
    return;
  }
  const double scores = static_cast<double>(pairs * call.queries) * static_cast<double>(call.keys);
  const Threads threads =
      all.limited_to(scores * (static_cast<double>(call.size + call.v_size) * kProductCost + kExpCost));
  // Heads are split only if there are fewer than threads: each part copies the keys and values.
  const std::size_t wanted = static_cast<std::size_t>(threads.count), parts = (wanted + pairs - 1) / pairs;
  const Attention attention(call, kernels);
  const std::size_t step = (call.queries + parts - 1) / parts;
  parallel_for(threads, pairs * parts, [&](std::size_t i) {
    const std::size_t pair = i / parts, begin = std::min(i % parts * step, call.queries);
    attention.run(pair / call.heads, pair % call.heads, begin, std::min(begin + step, call.queries));
  });
}

}  // namespace rigl
