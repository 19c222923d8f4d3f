// Products with a single vector whose elements are looked up in registers. Included by `kernels_body.h`, inside its
// namespace, for vectors of sixteen lanes.

static_assert(kWindow == 4 * kLanes, "a window is four vectors");

// The elements of a window at sixteen positions.
struct Window {
  Vector parts[4];

  RIGL_INLINE explicit Window(const float* from)
      : parts{load(from), load(from + kLanes), load(from + 2 * kLanes), load(from + 3 * kLanes)} {}

  RIGL_INLINE Vector at(const uint8_t* positions) const {
#if RIGL_AVX512
    const __m512i index =
        _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(positions)));
    const __m512 low = _mm512_permutex2var_ps((__m512)parts[0], index, (__m512)parts[1]);
    const __m512 high = _mm512_permutex2var_ps((__m512)parts[2], index, (__m512)parts[3]);
    return (Vector)_mm512_mask_blend_ps(_mm512_test_epi32_mask(index, _mm512_set1_epi32(2 * kLanes)), low, high);
#else
    Vector value;
    for (int lane = 0; lane < kLanes; ++lane) value[lane] = parts[positions[lane] / kLanes][positions[lane] % kLanes];
    return value;
#endif
  }
};

template <class Value>
void multiply_windows_of(const WindowView& view, const VectorTask& task) {
  const WindowEntry* entry = view.entries;
  const uint8_t* positions = view.positions;
  const auto* values = static_cast<const Value*>(view.values);
  for (size_t s = 0; s < view.slice_count; ++s) {
    Vector even{}, odd{};
    for (const WindowEntry* end = entry + view.entry_counts[s]; entry != end; ++entry) {
      const Window window(task.x + static_cast<size_t>(entry->window) * kWindow);
      uint32_t remaining = entry->count;
      for (; remaining >= 2; remaining -= 2, positions += 2 * kLanes, values += 2 * kLanes) {
        prefetch_values(values, 2 * kLanes);
        even += load_values<kLanes>(values) * window.at(positions);
        odd += load_values<kLanes>(values + kLanes) * window.at(positions + kLanes);
      }
      if (remaining == 0) continue;
      even += load_values<kLanes>(values) * window.at(positions);
      positions += kLanes;
      values += kLanes;
    }
    store_sums<kLanes>(even + odd, view.rows + s * kLanes, view.row_limit, task);
  }
}

void multiply_windows(const WindowView& view, const VectorTask& task) {
  switch (view.kind) {
    case ValueKind::kFloat32: return multiply_windows_of<float>(view, task);
    case ValueKind::kFloat16: return multiply_windows_of<uint16_t>(view, task);
    case ValueKind::kInt8: return multiply_windows_of<int8_t>(view, task);
  }
}
