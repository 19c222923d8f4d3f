// The gates of a GRU and of an LSTM. Included by `kernels_body.h`, inside its namespace.

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
    count == kLanes ? store(task.next + i, next) : store_partial(task.next + i, next, count);
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

void lstm_step(const CellTask& task) {
  const size_t size = task.size;
  for (size_t i = 0; i < size; i += kLanes) {
    const int count = static_cast<int>(size - i < kLanes ? size - i : kLanes);
    const auto part = [&](const float* from) {
      return count == kLanes ? load(from + i) : load_partial(from + i, count);
    };
    const auto gate = [&](size_t index) { return part(task.input + index * size) + part(task.state + index * size); };
    const Vector cell = sigmoid(gate(2)) * part(task.cell) + sigmoid(gate(0)) * tanh(gate(3));
    const Vector next = sigmoid(gate(1)) * tanh(cell);
    count == kLanes ? store(task.cell + i, cell) : store_partial(task.cell + i, cell, count);
    count == kLanes ? store(task.next + i, next) : store_partial(task.next + i, next, count);
  }
}
