// Layer normalization. Included by `kernels_body.h`, inside its namespace.

RIGL_INLINE float horizontal_sum(Vector value) {
  float sum = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) sum += value[lane];
  return sum;
}

// The sum of x and residual, or x: stored as `sum` where asked for, and as `y` for the passes that follow.
RIGL_INLINE float add_residual(const NormTask& task) {
  Vector total{};
  float tail = 0.0f;
  const size_t whole = task.size / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    Vector value = load(task.x + i);
    if (task.residual != nullptr) value += load(task.residual + i);
    total += value;
    store(task.y + i, value);
    if (task.sum != nullptr) store(task.sum + i, value);
  }
  for (size_t i = whole; i < task.size; ++i) {
    const float value = task.x[i] + (task.residual != nullptr ? task.residual[i] : 0.0f);
    tail += value;
    task.y[i] = value;
    if (task.sum != nullptr) task.sum[i] = value;
  }
  return horizontal_sum(total) + tail;
}

RIGL_INLINE float squared_distance(const float* values, size_t size, float mean) {
  Vector even{}, odd{};
  float tail = 0.0f;
  size_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const Vector a = load(values + i) - mean, b = load(values + i + kLanes) - mean;
    even += a * a;
    odd += b * b;
  }
  for (; i < size; ++i) tail += (values[i] - mean) * (values[i] - mean);
  return horizontal_sum(even + odd) + tail;
}

void normalize(const NormTask& task) {
  const float count = static_cast<float>(task.size);
  const float mean = add_residual(task) / count;
  const float variance = squared_distance(task.y, task.size, mean) / count;
  const float factor = 1.0f / __builtin_sqrtf(variance + task.epsilon);
  const size_t whole = task.size / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    const Vector value = (load(task.y + i) - mean) * factor * load(task.scale + i);
    store(task.y + i, task.bias != nullptr ? value + load(task.bias + i) : value);
  }
  for (size_t i = whole; i < task.size; ++i) {
    task.y[i] = (task.y[i] - mean) * factor * task.scale[i] + (task.bias != nullptr ? task.bias[i] : 0.0f);
  }
}

// Some vectors beside each other: sums need no lanes of the same vector. A line of the cache at a time, or two.
constexpr int kNormVectors = kLanes == 16 ? 2 : 32 / kLanes;

template <class Load, class Store>
RIGL_INLINE void normalize_some(const NormColumnsTask& task, size_t first, const Load& get, const Store& put) {
  const float count = static_cast<float>(task.size);
  Vector mean[kNormVectors] = {}, variance[kNormVectors] = {};
  for (size_t f = 0; f < task.size; ++f) {
    const size_t at = f * task.pitch + first;
    for (int v = 0; v < kNormVectors; ++v) {
      Vector value = get(task.x + at, v);
      if (task.residual != nullptr) value += get(task.residual + at, v);
      mean[v] += value;
      if (task.sum != nullptr) put(task.sum + at, v, value);
      put(task.y + at, v, value);
    }
  }
  for (int v = 0; v < kNormVectors; ++v) mean[v] /= count;
  for (size_t f = 0; f < task.size; ++f) {
    for (int v = 0; v < kNormVectors; ++v) {
      const Vector distance = get(task.y + f * task.pitch + first, v) - mean[v];
      variance[v] += distance * distance;
    }
  }
  for (int v = 0; v < kNormVectors; ++v) {
    for (int lane = 0; lane < kLanes; ++lane) {
      variance[v][lane] = 1.0f / __builtin_sqrtf(variance[v][lane] / count + task.epsilon);
    }
  }
  for (size_t f = 0; f < task.size; ++f) {
    float* at = task.y + f * task.pitch + first;
    const Vector scale = broadcast(task.scale[f]), shift = broadcast(task.bias != nullptr ? task.bias[f] : 0.0f);
    for (int v = 0; v < kNormVectors; ++v) put(at, v, (get(at, v) - mean[v]) * variance[v] * scale + shift);
  }
}

void normalize_columns(const NormColumnsTask& task) {
  constexpr size_t kStep = static_cast<size_t>(kNormVectors * kLanes);
  size_t first = 0;
  for (; first + kStep <= task.count; first += kStep) {
    normalize_some(
        task, first, [](const float* from, int v) { return load(from + v * kLanes); },
        [](float* to, int v, Vector value) { store(to + v * kLanes, value); });
  }
  if (first == task.count) return;
  const int rest = static_cast<int>(task.count - first);
  const auto lanes = [rest](int v) { return rest - v * kLanes; };
  normalize_some(
      task, first,
      [&](const float* from, int v) {
        if (lanes(v) >= kLanes) return load(from + v * kLanes);
        return lanes(v) > 0 ? load_partial(from + v * kLanes, lanes(v)) : Vector{};
      },
      [&](float* to, int v, Vector value) {
        if (lanes(v) >= kLanes) return store(to + v * kLanes, value);
        if (lanes(v) > 0) store_partial(to + v * kLanes, value, lanes(v));
      });
}
