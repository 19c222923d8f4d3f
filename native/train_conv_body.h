// The inner loops of convolutions in training. Included by `train_body.h`, inside its namespace.

void copy_vectors(const float* from, size_t pitch, size_t count, float* to) {
  for (; count > 0; --count, from += pitch, to += kLanes) store(to, load(from));
}

RIGL_INLINE void store_lanes(float* to, Vector value, int count) {
  if (count == kLanes) {
    store(to, value);
  } else {
    for (int i = 0; i < count; ++i) to[i] = value[i];
  }
}

template <int kVectors>
void convolve_rows(const ConvBlock& block, const ConvTile& task) {
  constexpr int kChains = kVectors == 1 ? 4 : kVectors <= 4 ? 2 : 1;
  const uint32_t* offset = block.offsets;
  const float* value = block.values;
  for (size_t r = 0; r < block.row_count; ++r) {
    const RowEntry entry = block.rows[r];
    float* stored = task.acc + entry.row * (kVectors * kLanes);
    Vector acc[kChains][kVectors] = {};
    if (task.first) {
      const Vector start = (task.bias != nullptr ? task.bias[entry.row] : 0.0f) - Vector{};
      for (int v = 0; v < kVectors; ++v) acc[0][v] = start;
    } else {
      for (int v = 0; v < kVectors; ++v) acc[0][v] = load(stored + v * kLanes);
    }
    uint32_t remaining = entry.count;
    for (; remaining >= kChains; remaining -= kChains) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        const float* x = task.x + *offset++;
        const Vector weight = *value++ - Vector{};
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[c][v] += weight * load(x + v * kLanes);
      }
    }
    for (; kChains > 1 && remaining > 0; --remaining) {
      const float* x = task.x + *offset++;
      const Vector weight = *value++ - Vector{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[0][v] += weight * load(x + v * kLanes);
    }
    for (int c = 1; c < kChains; ++c) {
      for (int v = 0; v < kVectors; ++v) acc[0][v] += acc[c][v];
    }
    if (task.last) {
      float* y = task.y + entry.row * task.y_pitch;
      for (int v = 0; v < kVectors - 1; ++v) store_lanes(y + v * task.y_step, acc[0][v], task.valid);
      store_lanes(y + (kVectors - 1) * task.y_step, acc[0][kVectors - 1], task.valid_last);
    } else {
      for (int v = 0; v < kVectors; ++v) store(stored + v * kLanes, acc[0][v]);
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

// Add the products of `kCount` connections of a row to their sums.
template <int kCount>
RIGL_INLINE void correlate(const uint32_t* offset, const float* dy, const CorrelationTile& task, float* sums) {
  constexpr int kChains = kCount <= 4 ? 2 : 1;
  Vector parts[kShared] = {}, more[kShared] = {};
  const float* x[kCount];
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) x[j] = task.x + offset[j];
  for (int row = 0; row < task.rows; ++row, dy += task.dy_row) {
    const size_t start = row * task.x_row;
    int at = 0;
    for (; at + (kChains - 1) * kLanes < task.floats; at += kChains * kLanes) {
      const Vector gradient = load(dy + at);
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) parts[j] += gradient * load(x[j] + start + at);
      if (kChains > 1) {
        const Vector next = load(dy + at + kLanes);
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j) more[j] += next * load(x[j] + start + at + kLanes);
      }
    }
    if (kChains > 1 && at < task.floats) {
      const Vector gradient = load(dy + at);
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) parts[j] += gradient * load(x[j] + start + at);
    }
  }
  if (kChains > 1) {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) parts[j] += more[j];
  }
  float found[kShared];
  sum_lanes(parts, found);
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) sums[j] += found[j];
}

void correlate_tile(const ConvBlock& block, const CorrelationTile& task) {
  const uint32_t* offset = block.offsets;
  float* sums = task.sums;
  for (size_t r = 0; r < block.row_count; ++r) {
    const float* dy = task.dy + block.rows[r].row * task.dy_pitch;
    uint32_t remaining = block.rows[r].count;
    for (; remaining >= kShared; remaining -= kShared, offset += kShared, sums += kShared) {
      correlate<kShared>(offset, dy, task, sums);
    }
    switch (remaining) {
      case 1: correlate<1>(offset, dy, task, sums); break;
      case 2: correlate<2>(offset, dy, task, sums); break;
      case 3: correlate<3>(offset, dy, task, sums); break;
      case 4: correlate<4>(offset, dy, task, sums); break;
      case 5: correlate<5>(offset, dy, task, sums); break;
      case 6: correlate<6>(offset, dy, task, sums); break;
      case 7: correlate<7>(offset, dy, task, sums); break;
      default: break;
    }
    offset += remaining;
    sums += remaining;
  }
}
