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
