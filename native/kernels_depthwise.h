// Dense depthwise filters: one per channel. Included by `kernels_body.h`, inside its namespace.
//
// Vectors of adjacent output pixels are computed from the top of the image to its bottom. What lies to the left and to
// the right of it is zero in memory; rows above and below are left out. A vector that reaches beyond the end of its row
// is stored before the start of the next row, or the tail of the last one would remain there.

// The first `count` lanes of what may be more or less than a vector; zeros in the others.
RIGL_INLINE Vector load_up_to(const float* from, ptrdiff_t count) {
  if (count >= kLanes) return load(from);
  return count > 0 ? load_partial(from, static_cast<int>(count)) : Vector{};
}

// The lanes with even, or odd, numbers of two adjacent vectors.
RIGL_INLINE void split_lanes(Vector a, Vector b, float* even, float* odd) {
#if RIGL_AVX512
  const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  store(even, (Vector)_mm512_permutex2var_ps((__m512)a, first, (__m512)b));
  store(odd, (Vector)_mm512_permutex2var_ps((__m512)a, _mm512_add_epi32(first, _mm512_set1_epi32(1)), (__m512)b));
#elif RIGL_LANES == 8 && defined(__AVX2__)
  // Quarters of two lanes in the order a, b, a, b, then in the right one.
  const __m256d evens = _mm256_castps_pd(_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88));
  const __m256d odds = _mm256_castps_pd(_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd));
  store(even, (Vector)_mm256_permute4x64_pd(evens, 0xd8));
  store(odd, (Vector)_mm256_permute4x64_pd(odds, 0xd8));
#else
  for (int i = 0; i < kLanes; ++i) {
    even[i] = 2 * i < kLanes ? a[2 * i] : b[2 * i - kLanes];
    odd[i] = 2 * i + 1 < kLanes ? a[2 * i + 1] : b[2 * i + 1 - kLanes];
  }
#endif
}

// Copy an image to rows with room for zeros at their ends; where `odd` is not zero, with odd columns that far from even
// ones. Whole vectors are written.
void lay_rows(const RowsTask& task) {
  const float* from = task.image;
  float* to = task.planes;
  const ptrdiff_t width = task.width, odd = task.odd, pitch = task.row_pitch;
  const size_t rows = task.rows;
  for (size_t row = 0; row < rows; ++row, from += width, to += pitch) {
    if (odd == 0) {
      ptrdiff_t i = 0;
      for (; i + kLanes <= width; i += kLanes) store(to + i, load(from + i));
      if (i < width) store(to + i, load_partial(from + i, static_cast<int>(width - i)));
      continue;
    }
    for (ptrdiff_t i = 0; i < width; i += 2 * kLanes) {
      const Vector first = load_up_to(from + i, width - i), second = load_up_to(from + i + kLanes, width - i - kLanes);
      split_lanes(first, second, to + i / 2, to + i / 2 + odd);
    }
  }
}

RIGL_INLINE void store_output(const DepthwiseTask& task, Vector value, size_t row, size_t column) {
  const size_t at = row * task.out_width + column;
  value = clamp(value, task.clip);
  if (at + kLanes <= task.pixels) {
    store(task.y + at, value);
  } else {
    store_partial(task.y + at, value, static_cast<int>(task.pixels - at));
  }
}

// A square filter of stride 1. Each row of the image is loaded once, and added to all outputs that it is under: the
// sums of `kSize` rows of the output are in registers.
template <int kSize, int kVectors>
void walk_down(const DepthwiseTask& task, size_t column) {
  Vector weights[kSize][kSize];
  for (int r = 0; r < kSize; ++r) {
    for (int c = 0; c < kSize; ++c) weights[r][c] = broadcast(task.weights[r * kSize + c]);
  }
  const Vector bias = broadcast(task.bias);
  Vector acc[kSize][kVectors];  // of the rows of the output, the topmost first
  for (int r = 0; r < kSize; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = bias;
  }
  const float* x = task.planes + task.columns_at[0] + static_cast<ptrdiff_t>(column);
  const DepthwiseTask here = task;          // as far as the compiler knows, a store to the output could change the task
  ptrdiff_t done = here.top - (kSize - 1);  // the row of the output that is complete after this row of the image
  for (ptrdiff_t row = 0; row < here.height; ++row, ++done, x += here.row_pitch) {
#pragma GCC unroll 5
    for (int c = 0; c < kSize; ++c) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vector pixels = load(x + c + v * kLanes);
#pragma GCC unroll 5
        for (int r = 0; r < kSize; ++r) acc[r][v] += weights[kSize - 1 - r][c] * pixels;
      }
    }
    if (done >= 0) {
      for (int v = 0; v < kVectors; ++v) {
        store_output(here, acc[0][v], static_cast<size_t>(done), column + static_cast<size_t>(v) * kLanes);
      }
    }
#pragma GCC unroll 5
    for (int r = 0; r < kSize - 1; ++r) {
      for (int v = 0; v < kVectors; ++v) acc[r][v] = acc[r + 1][v];
    }
    for (int v = 0; v < kVectors; ++v) acc[kSize - 1][v] = bias;
  }
#pragma GCC unroll 5
  for (int r = 0; r < kSize - 1; ++r, ++done) {
    if (done < 0 || static_cast<size_t>(done) >= here.out_height) continue;
    for (int v = 0; v < kVectors; ++v) {
      store_output(here, acc[r][v], static_cast<size_t>(done), column + static_cast<size_t>(v) * kLanes);
    }
  }
}

ptrdiff_t ceil_div(ptrdiff_t a, ptrdiff_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

// Any filter, row by row of the output; `kColumns` is that of the filter, or zero for any.
template <int kColumns, int kVectors>
void filter_rows(const DepthwiseTask& task, size_t column) {
  const DepthwiseTask here = task;
  const int columns = kColumns > 0 ? kColumns : here.columns;
  const Vector bias = broadcast(here.bias);
  for (size_t row = 0; row < here.out_height; ++row) {
    // The rows of the filter that are inside the image.
    const ptrdiff_t top = static_cast<ptrdiff_t>(row) * here.row_stride - here.top;
    const ptrdiff_t first = ceil_div(-top, here.row_dilation), inside = ceil_div(here.height - top, here.row_dilation);
    const ptrdiff_t end = inside < here.rows ? inside : here.rows;
    // A single vector is summed by two chains.
    Vector acc[kVectors], other{};
    for (int v = 0; v < kVectors; ++v) acc[v] = bias;
    for (ptrdiff_t r = first; r < end; ++r) {
      const float* x = here.planes + (top + r * here.row_dilation) * here.row_pitch + static_cast<ptrdiff_t>(column);
      const float* weights = here.weights + r * columns;
#pragma GCC unroll 5
      for (int c = 0; c < columns; ++c) {
        const Vector weight = broadcast(weights[c]);
        const float* from = x + here.columns_at[c];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          (kVectors == 1 && c % 2 == 1 ? other : acc[v]) += weight * load(from + v * kLanes);
      }
    }
    acc[0] += other;
    for (int v = 0; v < kVectors; ++v) store_output(here, acc[v], row, column + static_cast<size_t>(v) * kLanes);
  }
}

typedef void (*FilterColumns)(const DepthwiseTask&, size_t);

// From the right to the left, in as many vectors at once as there is a function for.
template <int kMost>
void filter_all(const DepthwiseTask& task, const FilterColumns (&filters)[kMost]) {
  size_t left = (task.out_width + kLanes - 1) / kLanes;
  const size_t parts = (left + kMost - 1) / kMost;
  for (size_t part = parts; part > 0; --part) {
    const size_t count = (left + part - 1) / part;
    left -= count;
    filters[count - 1](task, left * kLanes);
  }
}

// 1×1: scale and shift. Reads nothing past the last pixel.
void filter_1x1(const DepthwiseTask& task) {
  const Vector weight = broadcast(task.weights[0]), bias = broadcast(task.bias);
  const float* x = task.planes;
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

constexpr FilterColumns kWalk3[] = {walk_down<3, 1>, walk_down<3, 2>, walk_down<3, 3>};
// 25 weights and the sums of a vector take all 32 registers of AVX-512.
constexpr FilterColumns kWalk5[] = {walk_down<5, 1>, walk_down<5, 2>};
constexpr FilterColumns kRows3[] = {filter_rows<3, 1>, filter_rows<3, 2>, filter_rows<3, 3>, filter_rows<3, 4>};
constexpr FilterColumns kRows5[] = {filter_rows<5, 1>, filter_rows<5, 2>, filter_rows<5, 3>, filter_rows<5, 4>};
constexpr FilterColumns kAnyRows[] = {filter_rows<0, 1>, filter_rows<0, 2>, filter_rows<0, 3>, filter_rows<0, 4>};

void filter_channel(const DepthwiseTask& task) {
  if (task.in_place) return filter_1x1(task);
  const bool adjacent = task.row_stride == 1 && task.row_dilation == 1 && task.rows == task.columns &&
                        task.columns_at[task.columns - 1] - task.columns_at[0] == task.columns - 1;
  if (adjacent && task.rows == 3) return filter_all(task, kWalk3);
  if (adjacent && task.rows == 5) return filter_all(task, kWalk5);
  if (task.columns == 3) return filter_all(task, kRows3);
  task.columns == 5 ? filter_all(task, kRows5) : filter_all(task, kAnyRows);
}
