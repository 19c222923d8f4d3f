// The inner loops, written once for vectors of RIGL_LANES floats. Included by one source file per instruction set.
#include <string.h>

#if RIGL_LANES == 16 && defined(__AVX512F__)
#define RIGL_AVX512 1
#else
#define RIGL_AVX512 0
#endif
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.h"

namespace rigl {
namespace {

constexpr int kLanes = RIGL_LANES;
typedef float Vector __attribute__((vector_size(RIGL_LANES * 4)));
typedef int32_t Mask __attribute__((vector_size(RIGL_LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(RIGL_LANES * 4)));
// Vectors in memory are unaligned: image rows start anywhere. Only casts use these types, no variables: a compiler may
// drop the alignment of a typedef when it is a template argument.
typedef float UnalignedVector __attribute__((vector_size(RIGL_LANES * 4), aligned(4), may_alias));
typedef int32_t UnalignedMask __attribute__((vector_size(RIGL_LANES * 4), aligned(4), may_alias));

#define RIGL_INLINE inline __attribute__((always_inline))

RIGL_INLINE Vector load(const float* from) { return *reinterpret_cast<const UnalignedVector*>(from); }
RIGL_INLINE Mask load_mask(const int32_t* from) { return *reinterpret_cast<const UnalignedMask*>(from); }
RIGL_INLINE void store(float* to, Vector value) { *reinterpret_cast<UnalignedVector*>(to) = value; }
// Where the mask is zero the result is zero, even for NaN.
RIGL_INLINE Vector masked(Vector value, Mask mask) { return (Vector)((Mask)value & mask); }
RIGL_INLINE Vector broadcast(float value) { return value - Vector{}; }

// Comparisons with NaN are false, so NaN passes through, as in ONNX Runtime's own operators.
RIGL_INLINE Vector clamp(Vector value, Clip clip) {
  const Vector low = broadcast(clip.low), high = broadcast(clip.high);
#if RIGL_AVX512
  // One instruction instead of two each; of two numbers, one of them NaN, they return the second.
  value = (Vector)_mm512_maskz_max_ps(0xffff, (__m512)low, (__m512)value);
  return (Vector)_mm512_maskz_min_ps(0xffff, (__m512)high, (__m512)value);
#elif RIGL_LANES == 8 && defined(__AVX2__)
  return (Vector)_mm256_min_ps((__m256)high, _mm256_max_ps((__m256)low, (__m256)value));
#else
  value = value < low ? low : value;
  return value > high ? high : value;
#endif
}

RIGL_INLINE float clamp_scalar(float value, Clip clip) {
  value = value < clip.low ? clip.low : value;
  return value > clip.high ? clip.high : value;
}

// The first `count` lanes, fewer than all: masked where the processor can, or in pieces of fixed size, since a copy of
// any number of bytes is a call.
#if RIGL_AVX512
RIGL_INLINE Vector load_partial(const float* from, int count) {
  return (Vector)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}
RIGL_INLINE void store_partial(float* to, Vector value, int count) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)value);
}
#else
RIGL_INLINE void copy_partial(float* to, const float* from, int count) {
  for (int size = kLanes / 2; size > 0; size /= 2) {
    if ((count & size) == 0) continue;
    for (int i = 0; i < size; ++i) to[i] = from[i];
    to += size;
    from += size;
  }
}
#if RIGL_LANES == 8 && defined(__AVX2__)
RIGL_INLINE Vector load_partial(const float* from, int count) {
  static const int32_t kBefore[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return (Vector)_mm256_maskload_ps(from, (__m256i)load_mask(kBefore + kLanes - count));
}
#else
RIGL_INLINE Vector load_partial(const float* from, int count) {
  float lanes[kLanes] = {};
  copy_partial(lanes, from, count);
  return load(lanes);
}
#endif
RIGL_INLINE void store_partial(float* to, Vector value, int count) {
  float lanes[kLanes];
  store(lanes, value);
  copy_partial(to, lanes, count);
}
#endif

#include "kernels_activation.h"

// The epilogue of a row: add the residual, clip, store.
template <int kVectors>
RIGL_INLINE void store_row(Vector (&acc)[kVectors], const TileTask& task, uint32_t row) {
  const size_t offset = row * task.y_pitch;
  const int tail = task.width - (kVectors - 1) * kLanes;
  if (task.residual != nullptr) {
    const float* from = task.residual + offset;
    for (int v = 0; v < kVectors - 1; ++v) acc[v] += load(from + v * kLanes);
    const float* end = from + (kVectors - 1) * kLanes;
    acc[kVectors - 1] += tail == kLanes ? load(end) : load_partial(end, tail);
  }
  float* to = task.y + offset;
  for (int v = 0; v < kVectors - 1; ++v) store(to + v * kLanes, clamp(acc[v], task.clip));
  const Vector end = clamp(acc[kVectors - 1], task.clip);
  if (tail == kLanes) {
    store(to + (kVectors - 1) * kLanes, end);
  } else {
    store_partial(to + (kVectors - 1) * kLanes, end, tail);
  }
}

// Narrow tiles leave registers for several independent accumulator chains, which hide the latency of an addition.
constexpr int chains_for(int vectors) { return vectors == 1 ? 4 : vectors <= 6 ? 2 : 1; }

constexpr size_t kPrefetchRows = 4;
constexpr int kVectorsPerLine = kLanes < 16 ? 16 / kLanes : 1;

template <int kVectors>
RIGL_INLINE void prefetch_row(const TileTask& task, uint32_t row) {
  const size_t offset = row * task.y_pitch;
  for (int v = 0; v < kVectors; v += kVectorsPerLine) {
    __builtin_prefetch(task.y + offset + v * kLanes, 1);
    if (task.residual != nullptr) __builtin_prefetch(task.residual + offset + v * kLanes, 0);
  }
}

template <int kVectors>
void multiply_rows(const BlockView& block, const TileTask& task) {
  constexpr int kChains = chains_for(kVectors);
  const uint16_t* col_idx = block.col_idx;
  const float* value = block.values;
  const size_t pitch = task.x_pitch;
  for (size_t r = 0; r < block.row_count; ++r) {
    const RowEntry entry = block.rows[r];
    float* stored = task.acc + entry.row * task.acc_pitch;
    // Output rows are pages apart, which hardware prefetchers do not follow.
    if (task.last && r + kPrefetchRows < block.row_count) {
      prefetch_row<kVectors>(task, block.rows[r + kPrefetchRows].row);
    }
    Vector acc[kChains][kVectors];
    if (task.first) {
      const Vector start = broadcast(task.bias != nullptr ? task.bias[entry.row] : 0.0f);
      for (int v = 0; v < kVectors; ++v) acc[0][v] = start;
    } else {
      for (int v = 0; v < kVectors; ++v) acc[0][v] = load(stored + v * kLanes);
    }
    for (int c = 1; c < kChains; ++c) {
      for (int v = 0; v < kVectors; ++v) acc[c][v] = Vector{};
    }
    uint32_t remaining = entry.count;
    for (; remaining >= kChains; remaining -= kChains) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        const float* x = task.x + *col_idx++ * pitch;
        const Vector weight = broadcast(*value++);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[c][v] += weight * load(x + v * kLanes);
      }
    }
    if (kChains > 1) {
      for (; remaining > 0; --remaining) {
        const float* x = task.x + *col_idx++ * pitch;
        const Vector weight = broadcast(*value++);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[0][v] += weight * load(x + v * kLanes);
      }
    }
    for (int c = 1; c < kChains; ++c) {
      for (int v = 0; v < kVectors; ++v) acc[0][v] += acc[c][v];
    }
    if (task.last) {
      store_row<kVectors>(acc[0], task, entry.row);
    } else {
      for (int v = 0; v < kVectors; ++v) store(stored + v * kLanes, acc[0][v]);
    }
  }
}

void multiply_tile(const BlockView& block, const TileTask& task) {
  static_assert(kMaxVectors == 8 && kMaxWideVectors == 16, "one case per number of vectors");
  switch ((task.width + kLanes - 1) / kLanes) {
    case 1: return multiply_rows<1>(block, task);
    case 2: return multiply_rows<2>(block, task);
    case 3: return multiply_rows<3>(block, task);
    case 4: return multiply_rows<4>(block, task);
    case 5: return multiply_rows<5>(block, task);
    case 6: return multiply_rows<6>(block, task);
    case 7: return multiply_rows<7>(block, task);
    case 8: return multiply_rows<8>(block, task);
#if RIGL_LANES == 16
    case 9: return multiply_rows<9>(block, task);
    case 10: return multiply_rows<10>(block, task);
    case 11: return multiply_rows<11>(block, task);
    case 12: return multiply_rows<12>(block, task);
    case 13: return multiply_rows<13>(block, task);
    case 14: return multiply_rows<14>(block, task);
    case 15: return multiply_rows<15>(block, task);
    case 16: return multiply_rows<16>(block, task);
#endif
    default: return;
  }
}

#include "kernels_vector.h"

#if RIGL_LANES == 16
#include "kernels_window.h"
constexpr auto kMultiplyWindows = multiply_windows;
#else
constexpr void (*kMultiplyWindows)(const WindowView&, const VectorTask&) = nullptr;
#endif

#include "kernels_attention.h"
#include "kernels_depthwise.h"
#include "kernels_gru.h"
#include "kernels_norm.h"
#include "kernels_pack.h"
#include "kernels_row.h"

constexpr KernelTable kTable = {
    RIGL_NAME,        kLanes,    kSliceLanes,       multiply_tile,  multiply_vector, kMultiplyWindows,
    pack_tile,        transpose, deinterleave,      interleave,     gru_step,        gru_reset_state,
    gru_update_state, lstm_step, lay_rows,          filter_channel, multiply_row,    sum,
    activate,         normalize, normalize_columns, attend};

}  // namespace
}  // namespace rigl
