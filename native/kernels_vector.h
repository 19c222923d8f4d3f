// Products with a single vector. Included by `kernels_body.h`, inside its namespace.

// A vector of another number of lanes, and vectors of the same lanes in memory.
template <int kCount>
struct LanesOf {
  typedef float Floats __attribute__((vector_size(kCount * 4)));
  typedef uint32_t Words __attribute__((vector_size(kCount * 4)));
  typedef uint16_t Halves __attribute__((vector_size(kCount * 2)));
  typedef int8_t Bytes __attribute__((vector_size(kCount)));
};
template <int kCount>
using Floats = typename LanesOf<kCount>::Floats;

template <class To, class From>
RIGL_INLINE To read_lanes(const From* from) {
  To value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <int kCount>
RIGL_INLINE Floats<kCount> load_values(const float* from) {
  return read_lanes<Floats<kCount>>(from);
}

// Finite floats of 16 bits. Below the smallest normal number the bits count steps of 2^-24.
template <int kCount>
RIGL_INLINE Floats<kCount> load_values(const uint16_t* from) {
#if RIGL_AVX512
  if constexpr (kCount == 16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return (Floats<kCount>)_mm512_maskz_cvtph_ps(0xffff, bits);
  }
#endif
#if defined(__F16C__)
  if constexpr (kCount == 8) {
    return (Floats<kCount>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
#endif
  using Words = typename LanesOf<kCount>::Words;
  const Words bits = __builtin_convertvector(read_lanes<typename LanesOf<kCount>::Halves>(from), Words);
  const Words magnitude = bits & 0x7fff;
  const auto small = (Words)(__builtin_convertvector(magnitude, Floats<kCount>) * 0x1p-24f);
  const Words large = (magnitude << 13) + (112u << 23);
  return (Floats<kCount>)((magnitude < 0x400 ? small : large) | (bits & 0x8000) << 16);
}

template <int kCount>
RIGL_INLINE Floats<kCount> load_values(const int8_t* from) {
#if RIGL_AVX512
  if constexpr (kCount == 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return (Floats<kCount>)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
  }
#endif
#if defined(__AVX2__)
  if constexpr (kCount == 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return (Floats<kCount>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
#endif
  return __builtin_convertvector(read_lanes<typename LanesOf<kCount>::Bytes>(from), Floats<kCount>);
}

// Weights are streamed once: prefetch far ahead, across page boundaries too.
constexpr size_t kValuePrefetch = 4096, kLine = 64;

template <class Value>
RIGL_INLINE void prefetch_values(const Value* values, int count) {
  const char* from = reinterpret_cast<const char*>(values) + kValuePrefetch;
  for (size_t at = 0; at < static_cast<size_t>(count) * sizeof(Value); at += kLine) __builtin_prefetch(from + at);
}

// The numbers of the first `count` of some rows.
template <int kCount>
RIGL_INLINE Floats<kCount> numbers_of(const float* from, const uint32_t* rows, int count) {
  float lanes[kCount] = {};
  for (int lane = 0; lane < count; ++lane) lanes[lane] = from[rows[lane]];
  return read_lanes<Floats<kCount>>(lanes);
}

// Add the sums of some rows to what is stored of them, and clip after the last. Lanes without a row are at the end.
template <int kCount>
RIGL_INLINE void store_sums(Floats<kCount> sums, const uint32_t* rows, uint32_t row_limit, const VectorTask& task) {
  int count = kCount;
  while (count > 0 && rows[count - 1] >= row_limit) --count;
  if (task.scales != nullptr) sums *= numbers_of<kCount>(task.scales, rows, count);
  const float* start = task.first ? task.bias : task.y;
  if (start != nullptr) sums += numbers_of<kCount>(start, rows, count);
  if (task.last) {
    const Floats<kCount> low = task.clip.low - Floats<kCount>{}, high = task.clip.high - Floats<kCount>{};
    sums = sums < low ? low : sums;  // comparisons with NaN are false
    sums = sums > high ? high : sums;
  }
  float lanes[kCount];
  memcpy(lanes, &sums, sizeof lanes);
  for (int lane = 0; lane < count; ++lane) task.y[rows[lane]] = lanes[lane];
}

// Slices are at most eight rows wide: vectors of sixteen lanes are filled no faster than two of eight.
constexpr int kSliceLanes = kLanes < 8 ? kLanes : 8;
using SliceVector = Floats<kSliceLanes>;

// Scalar loads: faster than the gather instruction on the processors measured. Four indices are read at a time.
RIGL_INLINE SliceVector gather(const float* x, const uint16_t* col_idx) {
  SliceVector value;
#pragma GCC unroll 2
  for (int part = 0; part < kSliceLanes; part += 4) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (int lane = 0; lane < 4; ++lane) value[part + lane] = x[col_idx[part + lane]];
#else
    uint64_t four;
    memcpy(&four, col_idx + part, sizeof four);
    value[part] = x[four & 0xffff];
    value[part + 1] = x[four >> 16 & 0xffff];
    value[part + 2] = x[four >> 32 & 0xffff];
    value[part + 3] = x[four >> 48];
#endif
  }
  return value;
}

constexpr int kPrefetchDistance = 512;

template <class Value>
void multiply_slices_of(const SliceView& slices, const VectorTask& task) {
  const uint16_t* col_idx = slices.col_idx;
  const auto* values = static_cast<const Value*>(slices.values);
  for (size_t s = 0; s < slices.slice_count; ++s) {
    SliceVector even{}, odd{};
    uint32_t remaining = slices.lengths[s];
    for (; remaining >= 2; remaining -= 2) {
      __builtin_prefetch(values + kPrefetchDistance, 0, 0);
      __builtin_prefetch(col_idx + kPrefetchDistance, 0, 0);
      even += load_values<kSliceLanes>(values) * gather(task.x, col_idx);
      odd += load_values<kSliceLanes>(values + kSliceLanes) * gather(task.x, col_idx + kSliceLanes);
      values += 2 * kSliceLanes;
      col_idx += 2 * kSliceLanes;
    }
    if (remaining > 0) {
      even += load_values<kSliceLanes>(values) * gather(task.x, col_idx);
      values += kSliceLanes;
      col_idx += kSliceLanes;
    }
    store_sums<kSliceLanes>(even + odd, slices.rows + s * kSliceLanes, slices.row_limit, task);
  }
}

void multiply_vector(const SliceView& slices, const VectorTask& task) {
  switch (slices.kind) {
    case ValueKind::kFloat32: return multiply_slices_of<float>(slices, task);
    case ValueKind::kFloat16: return multiply_slices_of<uint16_t>(slices, task);
    case ValueKind::kInt8: return multiply_slices_of<int8_t>(slices, task);
  }
}
