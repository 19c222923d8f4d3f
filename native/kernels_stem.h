// Dense filters over few channels, and the largest of some pixels. Included by `kernels_body.h`, within its namespace.

RIGL_INLINE void store_part(float* to, Vector value, size_t count) {
  if (count >= kLanes) {
    store(to, value);
  } else {
    memcpy(to, &value, sizeof(float) * count);
  }
}

// Four outputs, `kVectors` vectors of pixels: the sums of a chunk of columns stay in registers. Products are added in the
// order of the runtime's own kernel, channel by channel and the bias last: what both round, they round alike.
template <int kVectors>
RIGL_INLINE void multiply_pixels(const StemTask& task, size_t first) {
  const float *x = task.x + first, *weights = task.weights;
  const ptrdiff_t* offsets = task.offsets;
  Vector totals[kStemRows][kVectors] = {};
  for (size_t begin = 0; begin < task.columns; begin += task.chunk) {
    const size_t end = begin + task.chunk < task.columns ? begin + task.chunk : task.columns;
    Vector sums[kStemRows][kVectors] = {};
    for (size_t k = begin; k < end; ++k, weights += kStemRows) {
      const float* from = x + offsets[k];
      Vector pixels[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) pixels[v] = load(from + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kStemRows; ++r) {
        const Vector weight = spread(weights[r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r][v] += weight * pixels[v];
      }
    }
    for (int r = 0; r < kStemRows; ++r) {
      for (int v = 0; v < kVectors; ++v) totals[r][v] += sums[r][v];
    }
  }
  for (int r = 0; r < task.rows; ++r) {
    const Vector bias = spread(task.bias != nullptr ? task.bias[r] : 0.0f);
    for (int v = 0; v < kVectors; ++v) {
      const size_t place = first + static_cast<size_t>(v * kLanes);
      store_part(task.y + static_cast<size_t>(r) * task.y_pitch + place, clipped(totals[r][v] + bias, task.clip),
                 task.width - place);
    }
  }
}

void multiply_stem(const StemTask& task) {
  size_t left = (task.width + kLanes - 1) / kLanes, first = 0;
  // Four is left as two and two: the last part should not be a single vector.
  for (; left >= 3 && left != 4; left -= 3, first += 3 * kLanes) multiply_pixels<3>(task, first);
  for (; left >= 2; left -= 2, first += 2 * kLanes) multiply_pixels<2>(task, first);
  if (left == 1) multiply_pixels<1>(task, first);
}

// Comparisons with NaN are false: it is passed over unless it comes first.
void pool_row(const PoolTask& task) {
  for (size_t place = 0; place < task.width; place += kLanes) {
    Vector most = load(task.x + task.offsets[0] + place);
    for (size_t t = 1; t < task.taps; ++t) {
      const Vector other = load(task.x + task.offsets[t] + place);
      most = other > most ? other : most;
    }
    store_part(task.y + place, most, task.width - place);
  }
}
