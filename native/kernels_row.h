// One row of a sparse matrix at a time, for matrices of few columns. Included by `kernels_body.h`, inside its
// namespace.

template <int kVectors>
RIGL_INLINE void multiply_part(const RowTask& task, size_t pixel) {
  const uint32_t* col_idx = task.col_idx;
  const float* values = task.values;
  const float* x = task.x + pixel;
  Vector acc[kVectors];
  for (int v = 0; v < kVectors; ++v) acc[v] = broadcast(task.bias);
  for (size_t k = 0; k < task.count; ++k) {
    const float* from = x + col_idx[k] * task.x_pitch;
    const Vector weight = broadcast(values[k]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[v] += weight * load(from + v * kLanes);
  }
  for (int v = 0; v < kVectors; ++v) store(task.y + pixel + v * kLanes, clamp(acc[v], task.clip));
}

void multiply_row(const RowTask& whole) {
  const RowTask task = whole;  // as far as the compiler knows, a store to the output could change the task
  constexpr int kMost = 8;
  size_t pixel = 0;
  for (; pixel + kMost * kLanes <= task.pixels; pixel += kMost * kLanes) multiply_part<kMost>(task, pixel);
  if (pixel >= task.pixels) return;
  switch ((task.pixels - pixel + kLanes - 1) / kLanes) {
    case 1: return multiply_part<1>(task, pixel);
    case 2: return multiply_part<2>(task, pixel);
    case 3: return multiply_part<3>(task, pixel);
    case 4: return multiply_part<4>(task, pixel);
    case 5: return multiply_part<5>(task, pixel);
    case 6: return multiply_part<6>(task, pixel);
    case 7: return multiply_part<7>(task, pixel);
    default: return multiply_part<8>(task, pixel);
  }
}

float sum(const float* values, size_t count) {
  Vector acc[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int v = 0; v < 4; ++v) acc[v] += load(values + i + static_cast<size_t>(v) * kLanes);
  }
  for (; i + kLanes <= count; i += kLanes) acc[0] += load(values + i);
  if (i < count) acc[1] += load_partial(values + i, static_cast<int>(count - i));
  const Vector total = acc[0] + acc[1] + acc[2] + acc[3];
  float result = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) result += total[lane];
  return result;
}
