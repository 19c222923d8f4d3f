// The inner loop of training, written once for vectors of RIGL_LANES floats. Included by one source file per
// instruction set.
#include "train_kernels.h"

namespace rigl {
namespace {

constexpr int kLanes = RIGL_LANES;
typedef float Vector __attribute__((vector_size(RIGL_LANES * 4)));
typedef float UnalignedVector __attribute__((vector_size(RIGL_LANES * 4), aligned(4), may_alias));

#define RIGL_INLINE inline __attribute__((always_inline))

RIGL_INLINE Vector load(const float* from) { return *reinterpret_cast<const UnalignedVector*>(from); }
RIGL_INLINE void store(float* to, Vector value) { *reinterpret_cast<UnalignedVector*>(to) = value; }

#if defined(__clang__) || __GNUC__ >= 12
#define RIGL_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#elif RIGL_LANES == 4
typedef int32_t Places __attribute__((vector_size(16)));
#define RIGL_PICK(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#else
typedef int32_t Places __attribute__((vector_size(32)));
#define RIGL_PICK(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// Eight sums at once: the connections of a row share each load of its gradient.
constexpr int kShared = 8;

#if RIGL_LANES == 4
RIGL_INLINE Vector pairs(Vector a, Vector b) { return RIGL_PICK(a, b, 0, 4, 2, 6) + RIGL_PICK(a, b, 1, 5, 3, 7); }
RIGL_INLINE Vector sums_of(const Vector* parts) {
  const Vector low = pairs(parts[0], parts[1]), high = pairs(parts[2], parts[3]);
  return RIGL_PICK(low, high, 0, 1, 4, 5) + RIGL_PICK(low, high, 2, 3, 6, 7);
}
RIGL_INLINE void sum_lanes(const Vector* parts, float* out) {
  store(out, sums_of(parts));
  store(out + 4, sums_of(parts + 4));
}
#else
typedef float Vector8 __attribute__((vector_size(32)));
typedef float UnalignedVector8 __attribute__((vector_size(32), aligned(4), may_alias));
#if RIGL_LANES == 8
RIGL_INLINE Vector8 folded(Vector value) { return value; }
#else
RIGL_INLINE Vector8 folded(Vector value) {
  union {
    Vector whole;
    Vector8 half[2];
  } parts = {value};
  return parts.half[0] + parts.half[1];
}
#endif
RIGL_INLINE Vector8 pairs(Vector8 a, Vector8 b) {
  return RIGL_PICK(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + RIGL_PICK(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
}
RIGL_INLINE Vector8 fours(Vector8 a, Vector8 b) {
  return RIGL_PICK(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + RIGL_PICK(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}
RIGL_INLINE void sum_lanes(const Vector* parts, float* out) {
  const Vector8 a = pairs(folded(parts[0]), folded(parts[1])), b = pairs(folded(parts[2]), folded(parts[3]));
  const Vector8 c = pairs(folded(parts[4]), folded(parts[5])), d = pairs(folded(parts[6]), folded(parts[7]));
  const Vector8 low = fours(a, b), high = fours(c, d);
  *reinterpret_cast<UnalignedVector8*>(out) =
      RIGL_PICK(low, high, 0, 1, 2, 3, 8, 9, 10, 11) + RIGL_PICK(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
}
#endif

// Rows of a gradient and of what it is multiplied with, in floats from row to row.
struct Strip {
  int rows, floats;
  size_t dy_row, x_row;
};

// Add the products of `kCount` connections that share a gradient to their sums.
template <int kCount>
RIGL_INLINE void add_samples(const float* const* x, const float* dy, const Strip& strip, float* sums) {
  // Few connections leave registers for two chains each, which hide the latency of an addition.
  constexpr int kChains = kCount <= 4 ? 2 : 1;
  Vector parts[kShared] = {}, more[kShared] = {};
  size_t start = 0;
  for (int row = 0; row < strip.rows; ++row, dy += strip.dy_row, start += strip.x_row) {
    int at = 0;
    for (; at + (kChains - 1) * kLanes < strip.floats; at += kChains * kLanes) {
      const Vector gradient = load(dy + at);
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) parts[j] += gradient * load(x[j] + start + at);
      if (kChains > 1) {
        const Vector next = load(dy + at + kLanes);
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j) more[j] += next * load(x[j] + start + at + kLanes);
      }
    }
    if (kChains > 1 && at < strip.floats) {
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

// Of a row's connections, from `offsets` on: where each reads is `pitch` times its offset.
template <int kCount, class Offset>
RIGL_INLINE void sample(const Offset* offsets, size_t pitch, const float* from, const float* dy, const Strip& strip,
                        float* sums) {
  const float* x[kCount];
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) x[j] = from + offsets[j] * pitch;
  add_samples<kCount>(x, dy, strip, sums);
}

template <class Offset>
RIGL_INLINE void sample_row(const Offset* offsets, uint32_t count, size_t pitch, const float* from, const float* dy,
                            const Strip& strip, float* sums) {
  for (; count >= kShared; count -= kShared, offsets += kShared, sums += kShared) {
    sample<kShared>(offsets, pitch, from, dy, strip, sums);
  }
  switch (count) {
    case 1: return sample<1>(offsets, pitch, from, dy, strip, sums);
    case 2: return sample<2>(offsets, pitch, from, dy, strip, sums);
    case 3: return sample<3>(offsets, pitch, from, dy, strip, sums);
    case 4: return sample<4>(offsets, pitch, from, dy, strip, sums);
    case 5: return sample<5>(offsets, pitch, from, dy, strip, sums);
    case 6: return sample<6>(offsets, pitch, from, dy, strip, sums);
    case 7: return sample<7>(offsets, pitch, from, dy, strip, sums);
    default: return;
  }
}

void sample_tile(const BlockView& block, const SampleTask& task) {
  const uint16_t* col_idx = block.col_idx;
  float* sums = task.sums;
  const Strip strip = {1, task.width, 0, 0};
  for (size_t r = 0; r < block.row_count; ++r) {
    const RowEntry entry = block.rows[r];
    sample_row(col_idx, entry.count, task.x_pitch, task.x, task.dy + entry.row * task.dy_pitch, strip, sums);
    col_idx += entry.count;
    sums += entry.count;
  }
}

#include "train_conv_body.h"
#include "train_norm_body.h"

void mask(float* __restrict values, const uint8_t* __restrict active, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] *= static_cast<float>(active[i]);
}

constexpr TrainKernels kTable = {kLanes,        sample_tile, copy_vectors,  convolve_tile,    correlate_tile,
                                 sum_distances, scale_row,   sum_gradients, spread_gradients, mask};

}  // namespace
}  // namespace rigl
