// The innermost loops, written once for vectors of RIGL_LANES floats. Include it within one file per set of instructions.
#include <string.h>

#include "kernels.h"

namespace rigl {
namespace {

constexpr int kLanes = RIGL_LANES;
typedef float Vector __attribute__((vector_size(RIGL_LANES * 4)));
typedef int32_t Mask __attribute__((vector_size(RIGL_LANES * 4)));
// In memory they are unaligned on purpose: rows of images begin anywhere. Variables are never of these types, as a compiler
// may forget the alignment of a name when it is an argument of a template.
typedef float LooseVector __attribute__((vector_size(RIGL_LANES * 4), aligned(4), may_alias));
typedef int32_t LooseMask __attribute__((vector_size(RIGL_LANES * 4), aligned(4), may_alias));

#define RIGL_INLINE inline __attribute__((always_inline))

RIGL_INLINE Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
RIGL_INLINE Mask load_mask(const int32_t* from) { return *reinterpret_cast<const LooseMask*>(from); }
RIGL_INLINE void store(float* to, Vector value) { *reinterpret_cast<LooseVector*>(to) = value; }
// Where the mask is zero, nothing of the value is left: not even NaN.
RIGL_INLINE Vector masked(Vector value, Mask mask) { return (Vector)((Mask)value & mask); }
RIGL_INLINE Vector spread(float value) { return value - Vector{}; }

// Comparisons with NaN are false: it passes through, as in the runtime's own operators.
RIGL_INLINE Vector clipped(Vector value, Clip clip) {
  const Vector low = spread(clip.low), high = spread(clip.high);
  value = value < low ? low : value;
  return value > high ? high : value;
}

RIGL_INLINE float clipped_one(float value, Clip clip) {
  value = value < clip.low ? clip.low : value;
  return value > clip.high ? clip.high : value;
}

RIGL_INLINE Vector load_part(const float* from, int count) {
  Vector value{};
  memcpy(&value, from, sizeof(float) * static_cast<size_t>(count));
  return value;
}

template <int kVectors>
RIGL_INLINE void finish_row(Vector (&sums)[kVectors], const TileTask& task, uint32_t row) {
  const size_t offset = row * task.y_pitch;
  const int tail = task.width - (kVectors - 1) * kLanes;
  if (task.residual != nullptr) {
    const float* from = task.residual + offset;
    for (int v = 0; v < kVectors - 1; ++v) sums[v] += load(from + v * kLanes);
    const float* end = from + (kVectors - 1) * kLanes;
    sums[kVectors - 1] += tail == kLanes ? load(end) : load_part(end, tail);
  }
  float* to = task.y + offset;
  for (int v = 0; v < kVectors - 1; ++v) store(to + v * kLanes, clipped(sums[v], task.clip));
  const Vector end = clipped(sums[kVectors - 1], task.clip);
  if (tail == kLanes) {
    store(to + (kVectors - 1) * kLanes, end);
  } else {
    memcpy(to + (kVectors - 1) * kLanes, &end, sizeof(float) * static_cast<size_t>(tail));
  }
}

// Few vectors leave registers for several independent chains of sums: the latency of an addition is hidden.
constexpr int chains_for(int vectors) { return vectors == 1 ? 4 : vectors <= 6 ? 2 : 1; }

constexpr size_t kAhead = 4;
constexpr int kLine = kLanes < 16 ? 16 / kLanes : 1;  // vectors of a cache line

template <int kVectors>
RIGL_INLINE void prefetch_row(const TileTask& task, uint32_t row) {
  const size_t offset = row * task.y_pitch;
  for (int v = 0; v < kVectors; v += kLine) {
    __builtin_prefetch(task.y + offset + v * kLanes, 1);
    if (task.residual != nullptr) __builtin_prefetch(task.residual + offset + v * kLanes, 0);
  }
}

template <int kVectors>
void multiply_rows(const BlockView& block, const TileTask& task) {
  constexpr int kChains = chains_for(kVectors);
  const uint16_t* column = block.columns;
  const float* value = block.values;
  const size_t pitch = task.x_pitch;
  for (size_t r = 0; r < block.row_count; ++r) {
    const RowEntry entry = block.rows[r];
    float* kept = task.sums + entry.row * task.sums_pitch;
    // Rows of an image lie pages apart: no prefetcher follows.
    if (task.last && r + kAhead < block.row_count) prefetch_row<kVectors>(task, block.rows[r + kAhead].row);
    Vector sums[kChains][kVectors];
    if (task.first) {
      const Vector start = spread(task.bias != nullptr ? task.bias[entry.row] : 0.0f);
      for (int v = 0; v < kVectors; ++v) sums[0][v] = start;
    } else {
      for (int v = 0; v < kVectors; ++v) sums[0][v] = load(kept + v * kLanes);
    }
    for (int c = 1; c < kChains; ++c) {
      for (int v = 0; v < kVectors; ++v) sums[c][v] = Vector{};
    }
    uint32_t left = entry.count;
    for (; left >= kChains; left -= kChains) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        const float* x = task.x + *column++ * pitch;
        const Vector weight = spread(*value++);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[c][v] += weight * load(x + v * kLanes);
      }
    }
    if (kChains > 1) {
      for (; left > 0; --left) {
        const float* x = task.x + *column++ * pitch;
        const Vector weight = spread(*value++);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[0][v] += weight * load(x + v * kLanes);
      }
    }
    for (int c = 1; c < kChains; ++c) {
      for (int v = 0; v < kVectors; ++v) sums[0][v] += sums[c][v];
    }
    if (task.last) {
      finish_row<kVectors>(sums[0], task, entry.row);
    } else {
      for (int v = 0; v < kVectors; ++v) store(kept + v * kLanes, sums[0][v]);
    }
  }
}

void multiply_tile(const BlockView& block, const TileTask& task) {
  static_assert(kMostVectors == 8, "one case for each number of vectors");
  switch ((task.width + kLanes - 1) / kLanes) {
    case 1: return multiply_rows<1>(block, task);
    case 2: return multiply_rows<2>(block, task);
    case 3: return multiply_rows<3>(block, task);
    case 4: return multiply_rows<4>(block, task);
    case 5: return multiply_rows<5>(block, task);
    case 6: return multiply_rows<6>(block, task);
    case 7: return multiply_rows<7>(block, task);
    case 8: return multiply_rows<8>(block, task);
    default: return;
  }
}

// Vectors are built from single loads: on the processors tried that is faster than the gather instruction.
RIGL_INLINE Vector gathered(const float* x, const uint16_t* columns) {
#if RIGL_LANES == 8
  return Vector{x[columns[0]], x[columns[1]], x[columns[2]], x[columns[3]],
                x[columns[4]], x[columns[5]], x[columns[6]], x[columns[7]]};
#else
  Vector value;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) value[lane] = x[columns[lane]];
  return value;
#endif
}

constexpr int kStreamAhead = 512;

void multiply_vector(const SliceView& slices, const VectorTask& task) {
  const uint16_t* columns = slices.columns;
  const float* values = slices.values;
  for (size_t s = 0; s < slices.slice_count; ++s) {
    Vector even{}, odd{};
    uint32_t left = slices.lengths[s];
    for (; left >= 2; left -= 2) {
      // Weights pass through once: ask for them well ahead, over the borders of pages too.
      __builtin_prefetch(values + kStreamAhead, 0, 0);
      __builtin_prefetch(columns + kStreamAhead, 0, 0);
      even += load(values) * gathered(task.x, columns);
      odd += load(values + kLanes) * gathered(task.x, columns + kLanes);
      values += 2 * kLanes;
      columns += 2 * kLanes;
    }
    if (left > 0) {
      even += load(values) * gathered(task.x, columns);
      values += kLanes;
      columns += kLanes;
    }
    const Vector sums = even + odd;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t row = slices.rows[s * kLanes + static_cast<size_t>(lane)];
      if (row >= slices.row_limit) continue;
      float sum = sums[lane] + (task.first ? (task.bias != nullptr ? task.bias[row] : 0.0f) : task.y[row]);
      task.y[row] = task.last ? clipped_one(sum, task.clip) : sum;
    }
  }
}

// Near the ends of the planes a vector may reach beyond them: then element by element.
void pack_carefully(const ShiftTask& task, ptrdiff_t start, const int32_t* mask, float* to) {
  const int width = (task.width + kLanes - 1) / kLanes * kLanes;
  for (int i = 0; i < width; ++i) {
    const ptrdiff_t place = start + i;
    const bool within = place >= 0 && place < task.plane_limit && i < task.width && (mask == nullptr || mask[i] != 0);
    to[i] = within ? task.planes[place] : 0.0f;
  }
}

template <int kVectors>
void pack_columns(const ShiftTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  for (size_t c = 0; c < count; ++c, out += pitch) {
    const Source source = sources[c];
    const ptrdiff_t start = static_cast<ptrdiff_t>(source.channel) * task.plane_pitch + task.shifts[source.tap];
    const int32_t* mask = nullptr;
    if (task.mask_needed[source.tap]) mask = task.masks + source.tap * static_cast<size_t>(kVectors * kLanes);
    if (start < 0 || start + kVectors * kLanes > task.plane_limit) {
      pack_carefully(task, start, mask, out);
      continue;
    }
    const float* from = task.planes + start;
    // The next tile reads on from here, but in as many pages as there are channels: no prefetcher follows.
    for (int v = 0; v < kVectors; v += kLine) __builtin_prefetch(from + (kVectors + v) * kLanes, 0, 2);
    if (mask == nullptr) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store(out + v * kLanes, load(from + v * kLanes));
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        store(out + v * kLanes, masked(load(from + v * kLanes), load_mask(mask + v * kLanes)));
      }
    }
  }
}

// Runs that are longer than a tile.
void pack_long(const ShiftTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  const int width = (task.width + kLanes - 1) / kLanes * kLanes;
  for (size_t c = 0; c < count; ++c, out += pitch) {
    const Source source = sources[c];
    const ptrdiff_t start = static_cast<ptrdiff_t>(source.channel) * task.plane_pitch + task.shifts[source.tap];
    const int32_t* mask = nullptr;
    if (task.mask_needed[source.tap]) mask = task.masks + source.tap * static_cast<size_t>(width);
    if (start < 0 || start + width > task.plane_limit) {
      pack_carefully(task, start, mask, out);
      continue;
    }
    const float* from = task.planes + start;
    for (int i = 0; i < width; i += kLanes) {
      const Vector value = load(from + i);
      store(out + i, mask == nullptr ? value : masked(value, load_mask(mask + i)));
    }
  }
}

void pack_shifted(const ShiftTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  switch ((task.width + kLanes - 1) / kLanes) {
    case 1: return pack_columns<1>(task, sources, count, out, pitch);
    case 2: return pack_columns<2>(task, sources, count, out, pitch);
    case 3: return pack_columns<3>(task, sources, count, out, pitch);
    case 4: return pack_columns<4>(task, sources, count, out, pitch);
    case 5: return pack_columns<5>(task, sources, count, out, pitch);
    case 6: return pack_columns<6>(task, sources, count, out, pitch);
    case 7: return pack_columns<7>(task, sources, count, out, pitch);
    case 8: return pack_columns<8>(task, sources, count, out, pitch);
    default: return pack_long(task, sources, count, out, pitch);
  }
}

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t FourPlaces __attribute__((vector_size(16)));

#if defined(__clang__)
#define RIGL_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define RIGL_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, FourPlaces{__VA_ARGS__})
#endif

// Four by four: fits every processor, and bound by memory anyway.
RIGL_INLINE void transpose_four(const float* in, size_t in_pitch, float* out, size_t out_pitch) {
  const Four a = *reinterpret_cast<const Four*>(in), b = *reinterpret_cast<const Four*>(in + in_pitch);
  const Four c = *reinterpret_cast<const Four*>(in + 2 * in_pitch);
  const Four d = *reinterpret_cast<const Four*>(in + 3 * in_pitch);
  const Four ab_low = RIGL_SHUFFLE(a, b, 0, 4, 1, 5), ab_high = RIGL_SHUFFLE(a, b, 2, 6, 3, 7);
  const Four cd_low = RIGL_SHUFFLE(c, d, 0, 4, 1, 5), cd_high = RIGL_SHUFFLE(c, d, 2, 6, 3, 7);
  *reinterpret_cast<Four*>(out) = RIGL_SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
  *reinterpret_cast<Four*>(out + out_pitch) = RIGL_SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
  *reinterpret_cast<Four*>(out + 2 * out_pitch) = RIGL_SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
  *reinterpret_cast<Four*>(out + 3 * out_pitch) = RIGL_SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
}

void transpose(const float* in, size_t in_pitch, size_t rows, size_t columns, float* out, size_t out_pitch) {
  const size_t whole_rows = rows / 4 * 4, whole_columns = columns / 16 * 16;
  // Whole cache lines on both sides: 16 columns of input for each four rows.
  for (size_t c = 0; c < whole_columns; c += 16) {
    for (size_t r = 0; r < whole_rows; r += 4) {
      for (size_t part = 0; part < 16; part += 4) {
        transpose_four(in + r * in_pitch + c + part, in_pitch, out + (c + part) * out_pitch + r, out_pitch);
      }
    }
    for (size_t r = whole_rows; r < rows; ++r) {
      for (size_t part = c; part < c + 16; ++part) out[part * out_pitch + r] = in[r * in_pitch + part];
    }
  }
  for (size_t c = whole_columns; c < columns; ++c) {
    for (size_t r = 0; r < rows; ++r) out[c * out_pitch + r] = in[r * in_pitch + c];
  }
}

void split_pairs(const float* in, size_t pairs, float* even, float* odd) {
  size_t i = 0;
  for (; i + 4 <= pairs; i += 4) {
    const Four a = *reinterpret_cast<const Four*>(in + 2 * i), b = *reinterpret_cast<const Four*>(in + 2 * i + 4);
    *reinterpret_cast<Four*>(even + i) = RIGL_SHUFFLE(a, b, 0, 2, 4, 6);
    *reinterpret_cast<Four*>(odd + i) = RIGL_SHUFFLE(a, b, 1, 3, 5, 7);
  }
  for (; i < pairs; ++i) {
    even[i] = in[2 * i];
    odd[i] = in[2 * i + 1];
  }
}

// e to the x: the power of two in the exponent's bits, the rest by Taylor's series, which ends below the last bit.
RIGL_INLINE Vector exponential(Vector x) {
  x = clipped(x, {-87.0f, 88.0f});
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers
  const Vector whole = (x * 1.44269504f + kRound) - kRound;
  const Vector rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;  // ln 2 in two parts, the first one short
  Vector sum = spread(1.0f / 5040);
  sum = sum * rest + 1.0f / 720;
  sum = sum * rest + 1.0f / 120;
  sum = sum * rest + 1.0f / 24;
  sum = sum * rest + 1.0f / 6;
  sum = sum * rest + 0.5f;
  sum = sum * rest + 1.0f;
  sum = sum * rest + 1.0f;
  const Mask bits = (__builtin_convertvector(whole, Mask) + 127) << 23;
  return sum * (Vector)bits;
}

RIGL_INLINE Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// The hyperbolic tangent.
RIGL_INLINE Vector tangent(Vector x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

RIGL_INLINE Vector mixed(Vector update, Vector fresh, Vector before) {
  return fresh + sigmoid(update) * (before - fresh);
}

// Calls `body` for each vector of a state with a function that reads the same part of other arrays.
template <class Body>
RIGL_INLINE void for_each_part(const GateTask& task, const Body& body) {
  for (size_t i = 0; i < task.size; i += kLanes) {
    const int count = static_cast<int>(task.size - i < kLanes ? task.size - i : kLanes);
    const auto part = [&](const float* from) { return count == kLanes ? load(from + i) : load_part(from + i, count); };
    const Vector after = body(part);
    memcpy(task.after + i, &after, sizeof(float) * static_cast<size_t>(count));
  }
}

void gru_gates(const GateTask& task) {
  const size_t size = task.size;
  for_each_part(task, [&](const auto& part) {
    Vector state = part(task.fresh);
    if (task.bias != nullptr) state += part(task.bias);
    const Vector reset = sigmoid(part(task.input + size) + part(task.state + size));
    const Vector fresh = tangent(part(task.input + 2 * size) + reset * state);
    return mixed(part(task.input) + part(task.state), fresh, part(task.before));
  });
}

void gru_reset(const GateTask& task) {
  const size_t size = task.size;
  for_each_part(task, [&](const auto& part) {
    return sigmoid(part(task.input + size) + part(task.state + size)) * part(task.before);
  });
}

void gru_renew(const GateTask& task) {
  for_each_part(task, [&](const auto& part) {
    const Vector fresh = tangent(part(task.input + 2 * task.size) + part(task.fresh));
    return mixed(part(task.input) + part(task.state), fresh, part(task.before));
  });
}

#include "kernels_depthwise.h"

constexpr KernelTable kTable = {RIGL_NAME, kLanes,      multiply_tile, multiply_vector, pack_shifted,  transpose,
                                split_pairs, gru_gates, gru_reset,     gru_renew,       filter_channel};

}  // namespace
}  // namespace rigl
