// The inner loops of batch normalization in training. Included by `train_body.h`, inside its namespace.

RIGL_INLINE double sum_of_lanes(Vector value) {
  double sum = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(value[lane]);
  return sum;
}

RIGL_INLINE Vector lanes_of(const float* from, size_t count) {
  Vector value{};
  for (size_t i = 0; i < count; ++i) value[static_cast<int>(i)] = from[i];
  return value;
}

// Sums are of single precision within a part of a row, of double precision beyond.
constexpr size_t kSumPart = 4096;

double sum_distances(const float* x, size_t size, float mean, bool squared) {
  double total = 0.0;
  for (size_t begin = 0; begin < size; begin += kSumPart) {
    const size_t end = size - begin < kSumPart ? size : begin + kSumPart;
    Vector even{}, odd{};
    size_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      const Vector a = load(x + i) - mean, b = load(x + i + kLanes) - mean;
      even += squared ? a * a : a;
      odd += squared ? b * b : b;
    }
    total += sum_of_lanes(even + odd);
    for (; i < end; ++i) total += static_cast<double>(squared ? (x[i] - mean) * (x[i] - mean) : x[i] - mean);
  }
  return total;
}

void scale_row(const float* x, size_t size, float scale, float shift, float* y) {
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(y + i, load(x + i) * scale + shift);
  for (; i < size; ++i) y[i] = x[i] * scale + shift;
}

template <bool kClipped>
RIGL_INLINE Vector arriving(const NormRow& row, Vector x, Vector dy) {
  if (!kClipped) return dy;
  const auto positive = x * row.scale + row.shift > 0.0f;
  return positive ? dy : Vector{};
}

template <bool kClipped>
RIGL_INLINE void sum_gradients_of(const NormRow& row, double* plain, double* weighted) {
  for (size_t begin = 0; begin < row.size; begin += kSumPart) {
    const size_t end = row.size - begin < kSumPart ? row.size : begin + kSumPart;
    Vector sum{}, product{};
    for (size_t i = begin; i < end; i += kLanes) {
      const size_t left = end - i;
      const Vector x = left < kLanes ? lanes_of(row.x + i, left) : load(row.x + i);
      const Vector dy = left < kLanes ? lanes_of(row.dy + i, left) : load(row.dy + i);
      const Vector gradient = arriving<kClipped>(row, x, dy);
      sum += gradient;
      product += gradient * (x - row.mean);
    }
    *plain += sum_of_lanes(sum);
    *weighted += sum_of_lanes(product);
  }
}

void sum_gradients(const NormRow& row, double* plain, double* weighted) {
  *plain = *weighted = 0.0;
  row.clipped ? sum_gradients_of<true>(row, plain, weighted) : sum_gradients_of<false>(row, plain, weighted);
}

template <bool kClipped>
RIGL_INLINE void spread_gradients_of(const NormRow& row, float constant, float slope, float* dx) {
  size_t i = 0;
  for (; i + kLanes <= row.size; i += kLanes) {
    const Vector x = load(row.x + i);
    store(dx + i, arriving<kClipped>(row, x, load(row.dy + i)) * row.scale - constant - (x - row.mean) * slope);
  }
  if (i == row.size) return;
  const Vector x = lanes_of(row.x + i, row.size - i), dy = lanes_of(row.dy + i, row.size - i);
  store_lanes(dx + i, arriving<kClipped>(row, x, dy) * row.scale - constant - (x - row.mean) * slope,
              static_cast<int>(row.size - i));
}

void spread_gradients(const NormRow& row, float constant, float slope, float* dx) {
  row.clipped ? spread_gradients_of<true>(row, constant, slope, dx)
              : spread_gradients_of<false>(row, constant, slope, dx);
}
