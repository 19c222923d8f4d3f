// Softmax attention: y = softmax(scale * q · kᵀ + mask) · v for each sample and head, dense.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "threads.h"

namespace rigl {

// One of the values that attention reads: [batch][tokens][features], of which each head reads some.
struct AttentionInput {
  const float* data;
  std::size_t features;
  std::size_t first;  // feature of the first head
  bool by_column;     // in tiles, see tiles.h
};

// Added to the products: [batch][heads][queries][keys], with a pitch of zero where an axis is repeated.
struct AttentionMask {
  const float* data;  // or null
  std::size_t batch_pitch, head_pitch, query_pitch, key_pitch;
};

struct AttentionCall {
  AttentionInput q, k, v;
  AttentionMask mask;
  float* y;  // [batch][queries][heads * v_size]
  bool y_by_column;
  std::size_t batch, heads, queries, keys, size, v_size;  // sizes of a head
  float scale;
};

void run_attention(const AttentionCall& call, const KernelTable& kernels, const Threads& threads);

}  // namespace rigl
