// Rearranging activations: packing tiles of pixels, transposing, deinterleaving. Included by `kernels_body.h`, inside
// its namespace.

// Near the ends of the planes a vector may read out of bounds: copy element by element.
void pack_checked(const PackTask& task, ptrdiff_t start, const int32_t* mask, float* to) {
  const int width = (task.width + kLanes - 1) / kLanes * kLanes;
  for (int i = 0; i < width; ++i) {
    const ptrdiff_t index = start + i;
    const bool inside = index >= 0 && index < task.plane_limit && i < task.width && (mask == nullptr || mask[i] != 0);
    to[i] = inside ? task.planes[index] : 0.0f;
  }
}

template <int kVectors>
void pack_columns(const PackTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  for (size_t c = 0; c < count; ++c, out += pitch) {
    const Source source = sources[c];
    const ptrdiff_t start = static_cast<ptrdiff_t>(source.channel) * task.plane_pitch + task.offsets[source.tap];
    const int32_t* mask = nullptr;
    if (task.mask_needed[source.tap]) mask = task.masks + source.tap * static_cast<size_t>(kVectors * kLanes);
    if (start < 0 || start + kVectors * kLanes > task.plane_limit) {
      pack_checked(task, start, mask, out);
      continue;
    }
    const float* from = task.planes + start;
    // The next tile continues here, in one page per channel, which hardware prefetchers do not follow.
    for (int v = 0; v < kVectors; v += kVectorsPerLine) __builtin_prefetch(from + (kVectors + v) * kLanes, 0, 2);
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

// Runs longer than a tile.
void pack_wide(const PackTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  const int width = (task.width + kLanes - 1) / kLanes * kLanes;
  for (size_t c = 0; c < count; ++c, out += pitch) {
    const Source source = sources[c];
    const ptrdiff_t start = static_cast<ptrdiff_t>(source.channel) * task.plane_pitch + task.offsets[source.tap];
    const int32_t* mask = nullptr;
    if (task.mask_needed[source.tap]) mask = task.masks + source.tap * static_cast<size_t>(width);
    if (start < 0 || start + width > task.plane_limit) {
      pack_checked(task, start, mask, out);
      continue;
    }
    const float* from = task.planes + start;
    for (int i = 0; i < width; i += kLanes) {
      const Vector value = load(from + i);
      store(out + i, mask == nullptr ? value : masked(value, load_mask(mask + i)));
    }
  }
}

void pack_plain(const PackTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  switch ((task.width + kLanes - 1) / kLanes) {
    case 1: return pack_columns<1>(task, sources, count, out, pitch);
    case 2: return pack_columns<2>(task, sources, count, out, pitch);
    case 3: return pack_columns<3>(task, sources, count, out, pitch);
    case 4: return pack_columns<4>(task, sources, count, out, pitch);
    case 5: return pack_columns<5>(task, sources, count, out, pitch);
    case 6: return pack_columns<6>(task, sources, count, out, pitch);
    case 7: return pack_columns<7>(task, sources, count, out, pitch);
    case 8: return pack_columns<8>(task, sources, count, out, pitch);
    default: return pack_wide(task, sources, count, out, pitch);
  }
}

void scale_columns(const PackTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  for (size_t c = 0; c < count; ++c, out += pitch) {
    const Vector factor = broadcast(task.scale[sources[c].channel]);
    for (int i = 0; i < task.width; i += kLanes) store(out + i, factor * load(out + i));
  }
}

void pack_tile(const PackTask& task, const Source* sources, size_t count, float* out, size_t pitch) {
  pack_plain(task, sources, count, out, pitch);
  if (task.scale != nullptr) scale_columns(task, sources, count, out, pitch);
}

typedef float Float4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t Index4 __attribute__((vector_size(16)));

#if defined(__clang__)
#define RIGL_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define RIGL_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Index4{__VA_ARGS__})
#endif

// 4×4 suits every instruction set; the transposition is bound by memory.
RIGL_INLINE void transpose_4x4(const float* in, size_t in_pitch, float* out, size_t out_pitch) {
  const Float4 a = *reinterpret_cast<const Float4*>(in), b = *reinterpret_cast<const Float4*>(in + in_pitch);
  const Float4 c = *reinterpret_cast<const Float4*>(in + 2 * in_pitch);
  const Float4 d = *reinterpret_cast<const Float4*>(in + 3 * in_pitch);
  const Float4 ab_low = RIGL_SHUFFLE(a, b, 0, 4, 1, 5), ab_high = RIGL_SHUFFLE(a, b, 2, 6, 3, 7);
  const Float4 cd_low = RIGL_SHUFFLE(c, d, 0, 4, 1, 5), cd_high = RIGL_SHUFFLE(c, d, 2, 6, 3, 7);
  *reinterpret_cast<Float4*>(out) = RIGL_SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
  *reinterpret_cast<Float4*>(out + out_pitch) = RIGL_SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
  *reinterpret_cast<Float4*>(out + 2 * out_pitch) = RIGL_SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
  *reinterpret_cast<Float4*>(out + 3 * out_pitch) = RIGL_SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
}

void transpose(const float* in, size_t in_pitch, size_t rows, size_t columns, float* out, size_t out_pitch) {
  const size_t whole_rows = rows / 4 * 4, whole_columns = columns / 16 * 16;
  // Whole cache lines on both sides: 16 columns of input per four rows.
  for (size_t c = 0; c < whole_columns; c += 16) {
    for (size_t r = 0; r < whole_rows; r += 4) {
      for (size_t part = 0; part < 16; part += 4) {
        transpose_4x4(in + r * in_pitch + c + part, in_pitch, out + (c + part) * out_pitch + r, out_pitch);
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

void deinterleave(const float* in, size_t pairs, float* even, float* odd) {
  size_t i = 0;
#if RIGL_AVX512
  const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
  for (; i + kLanes <= pairs; i += kLanes) {
    const __m512 a = (__m512)load(in + 2 * i), b = (__m512)load(in + 2 * i + kLanes);
    store(even + i, (Vector)_mm512_permutex2var_ps(a, first, b));
    store(odd + i, (Vector)_mm512_permutex2var_ps(a, second, b));
  }
#endif
  for (; i + 4 <= pairs; i += 4) {
    const Float4 a = *reinterpret_cast<const Float4*>(in + 2 * i), b = *reinterpret_cast<const Float4*>(in + 2 * i + 4);
    *reinterpret_cast<Float4*>(even + i) = RIGL_SHUFFLE(a, b, 0, 2, 4, 6);
    *reinterpret_cast<Float4*>(odd + i) = RIGL_SHUFFLE(a, b, 1, 3, 5, 7);
  }
  for (; i < pairs; ++i) {
    even[i] = in[2 * i];
    odd[i] = in[2 * i + 1];
  }
}

void interleave(const float* in, size_t pitch, size_t count, size_t columns, float* out) {
  size_t i = 0;
  for (; count == 2 && i + 4 <= columns; i += 4) {
    const Float4 a = *reinterpret_cast<const Float4*>(in + i), b = *reinterpret_cast<const Float4*>(in + pitch + i);
    *reinterpret_cast<Float4*>(out + 2 * i) = RIGL_SHUFFLE(a, b, 0, 4, 1, 5);
    *reinterpret_cast<Float4*>(out + 2 * i + 4) = RIGL_SHUFFLE(a, b, 2, 6, 3, 7);
  }
  for (; i < columns; ++i) {
    for (size_t k = 0; k < count; ++k) out[i * count + k] = in[k * pitch + i];
  }
}
