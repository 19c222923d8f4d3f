// Dense depthwise filters: one per channel. Included by `kernels_body.h`, inside its namespace.

// Any filter; one of known size is unrolled. Everything is copied to local variables: as far as the compiler knows, a
// store to the output could change the task.
template <int kRows, int kColumns>
void filter_generic(const DepthwiseTask& task) {
  const int rows = kRows > 0 ? kRows : task.rows, columns = kColumns > 0 ? kColumns : task.columns;
  const Vector bias = broadcast(task.bias);
  const Clip clip = task.clip;
  const float* planes = task.planes;
  const DepthwiseColumn* filter = task.filter;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < pixels; pixel += kLanes) {
    Vector acc = bias;
#pragma GCC unroll 5
    for (int c = 0; c < columns; ++c) {
      const DepthwiseColumn& column = filter[c];
      Vector sum{};
#pragma GCC unroll 5
      for (int r = 0; r < rows; ++r) sum += column.weights[r] * load(planes + column.offsets[r] + pixel);
      acc += column.mask == nullptr ? sum : masked(sum, load_mask(column.mask + mask_index));
    }
    acc = clamp(acc, clip);
    mask_index += kLanes;
    if (mask_index == period) mask_index = 0;
    if (pixel + kLanes <= pixels) {
      store(y + pixel, acc);
    } else {
      store_partial(y + pixel, acc, static_cast<int>(pixels - pixel));
    }
  }
}

// 5×5, the step from filter row to filter row being the same in every column.
void filter_5x5(const DepthwiseTask& task) {
  const float* from[5];
  const int32_t* masks[5];
  ptrdiff_t steps[5];
  size_t mask_steps[5];
  Vector weights[5][5];
  static const int32_t kEverywhere[16] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  for (int c = 0; c < 5; ++c) {
    const DepthwiseColumn& column = task.filter[c];
    from[c] = task.planes + column.offsets[0];
    masks[c] = column.mask == nullptr ? kEverywhere : column.mask;
    mask_steps[c] = column.mask == nullptr ? 0 : 1;
    steps[c] = column.offsets[c] - column.offsets[0];  // of filter row c
    for (int r = 0; r < 5; ++r) weights[c][r] = broadcast(column.weights[r]);
  }
  const Vector bias = broadcast(task.bias);
  const Clip clip = task.clip;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < pixels; pixel += kLanes) {
    Vector acc = bias;
#pragma GCC unroll 5
    for (int c = 0; c < 5; ++c) {
      const float* x = from[c] + pixel;
      Vector sum = weights[c][0] * load(x);
#pragma GCC unroll 4
      for (int r = 1; r < 5; ++r) sum += weights[c][r] * load(x + steps[r]);
      acc += masked(sum, load_mask(masks[c] + mask_index * mask_steps[c]));
    }
    acc = clamp(acc, clip);
    mask_index += kLanes;
    if (mask_index == period) mask_index = 0;
    if (pixel + kLanes <= pixels) {
      store(y + pixel, acc);
    } else {
      store_partial(y + pixel, acc, static_cast<int>(pixels - pixel));
    }
  }
}

// 3×3 with masked outer columns. Everything is copied to local variables: as far as the compiler knows, a store to the
// output could change the task.
void filter_3x3(const DepthwiseTask& task) {
  const DepthwiseColumn &a = task.filter[0], &b = task.filter[1], &c = task.filter[2];
  const Vector a0 = broadcast(a.weights[0]), a1 = broadcast(a.weights[1]), a2 = broadcast(a.weights[2]);
  const Vector b0 = broadcast(b.weights[0]), b1 = broadcast(b.weights[1]), b2 = broadcast(b.weights[2]);
  const Vector c0 = broadcast(c.weights[0]), c1 = broadcast(c.weights[1]), c2 = broadcast(c.weights[2]);
  const float *pa = task.planes + a.offsets[0], *pb = task.planes + b.offsets[0], *pc = task.planes + c.offsets[0];
  // The step from filter row to filter row is the same in every column.
  const ptrdiff_t one = a.offsets[1] - a.offsets[0], two = a.offsets[2] - a.offsets[0];
  const Vector bias = broadcast(task.bias), low = broadcast(task.clip.low), high = broadcast(task.clip.high);
  const int32_t *left = a.mask, *right = c.mask;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < pixels; pixel += kLanes) {
    Vector first = a0 * load(pa + pixel), middle = bias + b0 * load(pb + pixel), last = c0 * load(pc + pixel);
    first += a1 * load(pa + one + pixel);
    middle += b1 * load(pb + one + pixel);
    last += c1 * load(pc + one + pixel);
    first += a2 * load(pa + two + pixel);
    middle += b2 * load(pb + two + pixel);
    last += c2 * load(pc + two + pixel);
    Vector acc = middle + masked(first, load_mask(left + mask_index)) + masked(last, load_mask(right + mask_index));
    acc = acc < low ? low : acc;
    acc = acc > high ? high : acc;
    mask_index += kLanes;
    if (mask_index == period) mask_index = 0;
    if (pixel + kLanes <= pixels) {
      store(y + pixel, acc);
    } else {
      store_partial(y + pixel, acc, static_cast<int>(pixels - pixel));
    }
  }
}

// The lanes of two adjacent vectors from lane `kFrom` of the first on.
template <int kFrom>
RIGL_INLINE Vector lanes_from(Vector first, Vector second) {
  static_assert(0 < kFrom && kFrom < kLanes, "lanes of both vectors");
#if RIGL_AVX512
  return (Vector)_mm512_maskz_alignr_epi32(0xffff, (__m512i)second, (__m512i)first, kFrom);
#elif RIGL_LANES == 8 && defined(__AVX2__)
  const __m256i middle = _mm256_permute2x128_si256((__m256i)first, (__m256i)second, 0x21);
  return kFrom < 4 ? (Vector)_mm256_alignr_epi8(middle, (__m256i)first, 4 * (kFrom % 4))
                   : (Vector)_mm256_alignr_epi8((__m256i)second, middle, 4 * (kFrom % 4));
#else
  float lanes[2 * kLanes];
  store(lanes, first);
  store(lanes + kLanes, second);
  return load(lanes + kFrom);
#endif
}

template <int kSize>
struct AdjacentColumns {
  Vector weights[kSize][kSize];  // [columns][rows]
  ptrdiff_t steps[kSize];        // of the filter rows

  // The sums over the filter rows from column `kFirst` to `kEnd`, at the pixels under the middle of the filter.
  template <int kFirst, int kEnd>
  RIGL_INLINE void sum(const float* x, Vector (&sums)[kSize]) const {
    const Vector top = load(x);
#pragma GCC unroll 5
    for (int c = kFirst; c < kEnd; ++c) sums[c] = weights[c][0] * top;
#pragma GCC unroll 5
    for (int r = 1; r < kSize; ++r) {
      const Vector pixels = load(x + steps[r]);
#pragma GCC unroll 5
      for (int c = kFirst; c < kEnd; ++c) sums[c] += weights[c][r] * pixels;
    }
  }
};

template <int kSize, int kColumn>
RIGL_INLINE Vector add_outer(Vector acc, const Vector (&before)[kSize], const Vector (&here)[kSize],
                             const Vector (&after)[kSize], const int32_t* const (&masks)[kSize], size_t mask_index) {
  constexpr int kMiddle = kSize / 2, kShift = kColumn - kMiddle;
  if constexpr (kColumn < kSize) {
    if constexpr (kShift < 0) {
      acc +=
          masked(lanes_from<kLanes + kShift>(before[kColumn], here[kColumn]), load_mask(masks[kColumn] + mask_index));
    } else if constexpr (kShift > 0) {
      acc += masked(lanes_from<kShift>(here[kColumn], after[kColumn]), load_mask(masks[kColumn] + mask_index));
    }
    return add_outer<kSize, kColumn + 1>(acc, before, here, after, masks, mask_index);
  }
  return acc;
}

// A filter whose columns read adjacent pixels, with masks for all but the middle one. The pixels are loaded once per
// filter row for all columns; the sums of a column are then shifted, together with those of the vector next to it.
template <int kSize>
void filter_adjacent(const DepthwiseTask& task) {
  constexpr int kMiddle = kSize / 2;
  AdjacentColumns<kSize> columns;
  const int32_t* masks[kSize];
  for (int c = 0; c < kSize; ++c) {
    masks[c] = task.filter[c].mask;
    columns.steps[c] = task.filter[0].offsets[c] - task.filter[0].offsets[0];
    for (int r = 0; r < kSize; ++r) columns.weights[c][r] = broadcast(task.filter[c].weights[r]);
  }
  const float* from = task.planes + task.filter[kMiddle].offsets[0];
  const Vector bias = broadcast(task.bias);
  const Clip clip = task.clip;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  Vector before[kSize] = {}, here[kSize], after[kSize];
  columns.template sum<0, kMiddle>(from - kLanes, before);
  columns.template sum<0, kSize>(from, here);
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < pixels; pixel += kLanes) {
    columns.template sum<0, kSize>(from + pixel + kLanes, after);
    const Vector acc = clamp(add_outer<kSize, 0>(bias + here[kMiddle], before, here, after, masks, mask_index), clip);
#pragma GCC unroll 5
    for (int c = 0; c < kSize; ++c) {
      before[c] = here[c];
      here[c] = after[c];
    }
    mask_index += kLanes;
    if (mask_index == period) mask_index = 0;
    if (pixel + kLanes <= pixels) {
      store(y + pixel, acc);
    } else {
      store_partial(y + pixel, acc, static_cast<int>(pixels - pixel));
    }
  }
}

// Whether all columns but the middle one have a mask, and read the pixels next to each other.
bool reads_adjacent(const DepthwiseTask& task) {
  const int middle = task.columns / 2;
  const DepthwiseColumn& center = task.filter[middle];
  for (int c = 0; c < task.columns; ++c) {
    const bool adjacent = task.filter[c].offsets[0] - center.offsets[0] == c - middle;
    if (!adjacent || (task.filter[c].mask == nullptr) != (c == middle)) return false;
  }
  return true;
}

// 1×1: scale and shift. Reads nothing past the last pixel.
void filter_1x1(const DepthwiseTask& task) {
  const Vector weight = broadcast(task.filter[0].weights[0]), bias = broadcast(task.bias);
  const float* x = task.planes + task.filter[0].offsets[0];
  const size_t pixels = task.pixels, whole = pixels / kLanes * kLanes;
  const Clip clip = task.clip;
  float* y = task.y;
  for (size_t pixel = 0; pixel < whole; pixel += kLanes) {
    store(y + pixel, clamp(bias + weight * load(x + pixel), clip));
  }
  if (whole == pixels) return;
  const Vector tail = clamp(bias + weight * load_partial(x + whole, static_cast<int>(pixels - whole)), clip);
  store_partial(y + whole, tail, static_cast<int>(pixels - whole));
}

void filter_channel(const DepthwiseTask& task) {
  if (task.rows == 1 && task.columns == 1) return filter_1x1(task);
  const bool square = task.rows == task.columns;
  if (square && task.rows == 3 && reads_adjacent(task)) return filter_adjacent<3>(task);
  if (square && task.rows == 5 && reads_adjacent(task)) return filter_adjacent<5>(task);
  const bool masked_3x3 = task.rows == 3 && task.columns == 3 && task.filter[0].mask != nullptr &&
                          task.filter[1].mask == nullptr && task.filter[2].mask != nullptr;
  if (masked_3x3) return filter_3x3(task);
  task.rows == 5 && task.columns == 5 ? filter_5x5(task) : filter_generic<0, 0>(task);
}
