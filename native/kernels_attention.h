// Attention of some queries. Included by `kernels_body.h`, inside its namespace.

// Rows of a dense product that share a load of the right side: as many as there are registers for.
constexpr int kDenseRows = kLanes == 16 ? 12 : 6;

// out[r][i] = sum over t of a[t][r] * x[t][i], for `kRows` rows and `kVectors` vectors of columns.
template <int kRows, int kVectors>
RIGL_INLINE void multiply_dense(const float* a, size_t a_pitch, const float* x, size_t depth, float* out) {
  constexpr size_t kWidth = static_cast<size_t>(kVectors * kLanes);
  Vector acc[kRows][kVectors] = {};
  for (size_t t = 0; t < depth; ++t, a += a_pitch, x += kWidth) {
    Vector column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = load(x + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = broadcast(a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] += factor * column[v];
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(out + static_cast<size_t>(r) * kWidth + v * kLanes, acc[r][v]);
  }
}

template <int kVectors>
RIGL_INLINE void multiply_dense_rows(const float* a, size_t a_pitch, size_t rows, const float* x, size_t depth,
                                     float* out) {
  constexpr size_t kWidth = static_cast<size_t>(kVectors * kLanes);
  size_t r = 0;
  for (; r + kDenseRows <= rows; r += kDenseRows) {
    multiply_dense<kDenseRows, kVectors>(a + r, a_pitch, x, depth, out + r * kWidth);
  }
  for (; r + 4 <= rows; r += 4) multiply_dense<4, kVectors>(a + r, a_pitch, x, depth, out + r * kWidth);
  for (; r < rows; ++r) multiply_dense<1, kVectors>(a + r, a_pitch, x, depth, out + r * kWidth);
}

// Exactly zero where the exponential would be too small for a number: what a mask excludes does not count. NaN stays.
RIGL_INLINE Vector exp_of_share(Vector x) {
  const Vector value = exp(x), known = x == x ? value : x;
  return x < -86.0f ? Vector{} : known;
}

// The numerators of a softmax over each column of [rows][width], in place. Returns the denominators in `sums`.
template <int kVectors>
RIGL_INLINE void exponentiate_columns(float* values, const float* mask, size_t rows, Vector (&sums)[kVectors]) {
  constexpr size_t kWidth = static_cast<size_t>(kVectors * kLanes);
  Vector top[kVectors];
  for (int v = 0; v < kVectors; ++v) top[v] = broadcast(-__builtin_inff());
  for (size_t r = 0; r < rows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = values + r * kWidth + v * kLanes;
      Vector value = load(at);
      if (mask != nullptr) {
        value += load(mask + r * kWidth + v * kLanes);
        store(at, value);
      }
      top[v] = value > top[v] ? value : top[v];
    }
  }
  for (int v = 0; v < kVectors; ++v) sums[v] = Vector{};
  for (size_t r = 0; r < rows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = values + r * kWidth + v * kLanes;
      const Vector share = exp_of_share(load(at) - top[v]);
      sums[v] += share;
      store(at, share);
    }
  }
}

template <int kVectors>
void attend_to_keys(const AttentionTask& task) {
  constexpr size_t kWidth = static_cast<size_t>(kVectors * kLanes);
  multiply_dense_rows<kVectors>(task.k, task.k_pitch, task.keys, task.q, task.size, task.scores);
  Vector sums[kVectors];
  exponentiate_columns<kVectors>(task.scores, task.mask, task.keys, sums);
  multiply_dense_rows<kVectors>(task.v, task.v_pitch, task.v_size, task.scores, task.keys, task.y);
  for (int v = 0; v < kVectors; ++v) sums[v] = 1.0f / sums[v];
  for (size_t r = 0; r < task.v_size; ++r) {
    float* at = task.y + r * kWidth;
    for (int v = 0; v < kVectors; ++v) store(at + v * kLanes, load(at + v * kLanes) * sums[v]);
  }
}

void attend(const AttentionTask& task) {
  static_assert(kQueryVectors == 2, "one case per number of vectors");
  task.width <= kLanes ? attend_to_keys<1>(task) : attend_to_keys<2>(task);
}
