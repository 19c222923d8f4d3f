// The gates of a GRU. Included by `kernels_body.h`, inside its namespace.

// e^x: the power of two goes into the exponent bits, the rest is a Taylor series cut off below the last bit.
RIGL_INLINE Vector exp(Vector x) {
  x = clamp(x, {-87.0f, 88.0f});
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to integers
  const Vector power = (x * 1.44269504f + kRound) - kRound;
  const Vector rest = x - power * 0.693359375f + power * 2.12194440e-4f;  // ln 2 in two parts, the first exact
  Vector sum = broadcast(1.0f / 5040);
  sum = sum * rest + 1.0f / 720;
  sum = sum * rest + 1.0f / 120;
  sum = sum * rest + 1.0f / 24;
  sum = sum * rest + 1.0f / 6;
  sum = sum * rest + 0.5f;
  sum = sum * rest + 1.0f;
  sum = sum * rest + 1.0f;
  const Mask bits = (__builtin_convertvector(power, Mask) + 127) << 23;
  return sum * (Vector)bits;
}

RIGL_INLINE Vector sigmoid(Vector x) { return 1.0f / (1.0f + exp(-x)); }

RIGL_INLINE Vector tanh(Vector x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// The next state: candidate and previous state, interpolated by the update gate.
RIGL_INLINE Vector interpolate(Vector update, Vector candidate, Vector prev) {
  return candidate + sigmoid(update) * (prev - candidate);
}

// Calls `body` for each vector of the state, with a function that loads the same part of other arrays.
template <class Body>
RIGL_INLINE void for_each_part(const GateTask& task, const Body& body) {
  for (size_t i = 0; i < task.size; i += kLanes) {
    const int count = static_cast<int>(task.size - i < kLanes ? task.size - i : kLanes);
    const auto part = [&](const float* from) {
      return count == kLanes ? load(from + i) : load_partial(from + i, count);
    };
    const Vector next = body(part);
    memcpy(task.next + i, &next, sizeof(float) * static_cast<size_t>(count));
  }
}

void gru_step(const GateTask& task) {
  const size_t size = task.size;
  for_each_part(task, [&](const auto& part) {
    Vector state = part(task.candidate);
    if (task.bias != nullptr) state += part(task.bias);
    const Vector reset = sigmoid(part(task.input + size) + part(task.state + size));
    const Vector candidate = tanh(part(task.input + 2 * size) + reset * state);
    return interpolate(part(task.input) + part(task.state), candidate, part(task.prev));
  });
}

void gru_reset_state(const GateTask& task) {
  const size_t size = task.size;
  for_each_part(task, [&](const auto& part) {
    return sigmoid(part(task.input + size) + part(task.state + size)) * part(task.prev);
  });
}

void gru_update_state(const GateTask& task) {
  for_each_part(task, [&](const auto& part) {
    const Vector candidate = tanh(part(task.input + 2 * task.size) + part(task.candidate));
    return interpolate(part(task.input) + part(task.state), candidate, part(task.prev));
  });
}
