// The inner loops of convolutions in training. Included by `train_body.h`, inside its namespace.

void copy_vectors(const float* from, size_t pitch, size_t count, size_t next, float* to) {
  for (; count > 0; --count, from += pitch, to += kLanes) {
    __builtin_prefetch(from + next);
    store(to, load(from));
  }
}

__attribute__((noinline)) void store_some(float* to, const Vector& value, int count) {
  for (int i = 0; i < count; ++i) to[i] = value[i];
}

RIGL_INLINE void store_lanes(float* to, Vector value, int count) {
  if (__builtin_expect(count == kLanes, 1)) {
    store(to, value);
  } else {
    const Vector copy = value;
    store_some(to, copy, count);
  }
}

// Every loop over vectors is unrolled: sums that are indexed at run time would live on the stack.
template <int kVectors>
struct Sums {
  Vector of[kVectors];

  RIGL_INLINE void fill(Vector value) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of[v] = value;
  }
  RIGL_INLINE void load_from(const float* from) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of[v] = load(from + v * kLanes);
  }
  RIGL_INLINE void store_to(float* to) const {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(to + v * kLanes, of[v]);
  }
  RIGL_INLINE void add(const Sums& other) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of[v] += other.of[v];
  }
  RIGL_INLINE void add_product(float value, const float* x) {
    const Vector weight = value - Vector{};
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of[v] += weight * load(x + v * kLanes);
  }
  RIGL_INLINE void store_pixels(const ConvTile& task, float* y) const {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors - 1; ++v) store_lanes(y + v * task.y_step, of[v], task.valid);
    store_lanes(y + (kVectors - 1) * task.y_step, of[kVectors - 1], task.valid_last);
  }
};

// The sums of `count` connections of a row. Few vectors leave registers for several chains, which hide the latency.
template <int kVectors>
RIGL_INLINE void add_products(const float* x, const uint32_t* offsets, const float* values, uint32_t count,
                              Sums<kVectors>* sums) {
  constexpr int kChains = kVectors == 1 ? 4 : kVectors <= 4 ? 2 : 1;
  uint32_t at = 0;
  if constexpr (kChains > 1) {
    Sums<kVectors> more[kChains - 1];
#pragma GCC unroll 4
    for (int c = 0; c < kChains - 1; ++c) more[c].fill(Vector{});
    for (; at + kChains <= count; at += kChains) {
      sums->add_product(values[at], x + offsets[at]);
#pragma GCC unroll 4
      for (int c = 0; c < kChains - 1; ++c) more[c].add_product(values[at + c + 1], x + offsets[at + c + 1]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < kChains - 1; ++c) sums->add(more[c]);
  }
  for (; at < count; ++at) sums->add_product(values[at], x + offsets[at]);
}

template <int kVectors>
void convolve_rows(const ConvBlock& block, const ConvTile& task) {
  const uint32_t* offsets = block.offsets;
  const float* values = block.values;
  for (size_t r = 0; r < block.row_count; ++r) {
    const RowEntry entry = block.rows[r];
    float* stored = task.acc + entry.row * (kVectors * kLanes);
    Sums<kVectors> sums;
    if (task.first) {
      sums.fill((task.bias != nullptr ? task.bias[entry.row] : 0.0f) - Vector{});
    } else {
      sums.load_from(stored);
    }
    add_products<kVectors>(task.x, offsets, values, entry.count, &sums);
    offsets += entry.count;
    values += entry.count;
    if (task.last) {
      sums.store_pixels(task, task.y + entry.row * task.y_pitch);
    } else {
      sums.store_to(stored);
    }
  }
}

void convolve_tile(const ConvBlock& block, const ConvTile& task) {
  static_assert(kMaxConvVectors == 8, "one case per number of vectors");
  switch (task.vectors) {
    case 1: return convolve_rows<1>(block, task);
    case 2: return convolve_rows<2>(block, task);
    case 3: return convolve_rows<3>(block, task);
    case 4: return convolve_rows<4>(block, task);
    case 5: return convolve_rows<5>(block, task);
    case 6: return convolve_rows<6>(block, task);
    case 7: return convolve_rows<7>(block, task);
    case 8: return convolve_rows<8>(block, task);
    default: return;
  }
}

void correlate_tile(const ConvBlock& block, const CorrelationTile& task) {
  const uint32_t* offsets = block.offsets;
  float* sums = task.sums;
  const Strip strip = {task.rows, task.floats, task.dy_row, task.x_row};
  for (size_t r = 0; r < block.row_count; ++r) {
    const RowEntry entry = block.rows[r];
    sample_row(offsets, entry.count, 1, task.x, task.dy + entry.row * task.dy_pitch, strip, sums);
    offsets += entry.count;
    sums += entry.count;
  }
}
