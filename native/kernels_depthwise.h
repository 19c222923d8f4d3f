// Dense depthwise filters: one per channel. Included by `kernels_body.h`, inside its namespace.

// Any filter; one of known size is unrolled. Everything is copied to local variables: as far as the compiler knows, a
// store to the output could change the task.
template <int kRows, int kColumns>
void filter_generic(const DepthwiseTask& task) {
  const int rows = kRows > 0 ? kRows : task.rows, columns = kColumns > 0 ? kColumns : task.columns;
  const Vector bias = broadcast(task.bias);
  const Clip clip = task.clip;
  const float* planes = task.planes;
  const DepthwiseColumn* filter = task.filter;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < pixels; pixel += kLanes) {
    Vector acc = bias;
#pragma GCC unroll 5
    for (int c = 0; c < columns; ++c) {
      const DepthwiseColumn& column = filter[c];
      Vector sum{};
#pragma GCC unroll 5
      for (int r = 0; r < rows; ++r) sum += column.weights[r] * load(planes + column.offsets[r] + pixel);
      acc += column.mask == nullptr ? sum : masked(sum, load_mask(column.mask + mask_index));
    }
    acc = clamp(acc, clip);
    mask_index += kLanes;
    if (mask_index == period) mask_index = 0;
    if (pixel + kLanes <= pixels) {
      store(y + pixel, acc);
    } else {
      store_partial(y + pixel, acc, static_cast<int>(pixels - pixel));
    }
  }
}

// 5×5, the step from filter row to filter row being the same in every column.
void filter_5x5(const DepthwiseTask& task) {
  const float* from[5];
  const int32_t* masks[5];
  ptrdiff_t steps[5];
  size_t mask_steps[5];
  Vector weights[5][5];
  static const int32_t kEverywhere[16] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  for (int c = 0; c < 5; ++c) {
    const DepthwiseColumn& column = task.filter[c];
    from[c] = task.planes + column.offsets[0];
    masks[c] = column.mask == nullptr ? kEverywhere : column.mask;
    mask_steps[c] = column.mask == nullptr ? 0 : 1;
    steps[c] = column.offsets[c] - column.offsets[0];  // of filter row c
    for (int r = 0; r < 5; ++r) weights[c][r] = broadcast(column.weights[r]);
  }
  const Vector bias = broadcast(task.bias);
  const Clip clip = task.clip;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < pixels; pixel += kLanes) {
    Vector acc = bias;
#pragma GCC unroll 5
    for (int c = 0; c < 5; ++c) {
      const float* x = from[c] + pixel;
      Vector sum = weights[c][0] * load(x);
#pragma GCC unroll 4
      for (int r = 1; r < 5; ++r) sum += weights[c][r] * load(x + steps[r]);
      acc += masked(sum, load_mask(masks[c] + mask_index * mask_steps[c]));
    }
    acc = clamp(acc, clip);
    mask_index += kLanes;
    if (mask_index == period) mask_index = 0;
    if (pixel + kLanes <= pixels) {
      store(y + pixel, acc);
    } else {
      store_partial(y + pixel, acc, static_cast<int>(pixels - pixel));
    }
  }
}

// 3×3 with masked outer columns. Everything is copied to local variables: as far as the compiler knows, a store to the
// output could change the task.
void filter_3x3(const DepthwiseTask& task) {
  const DepthwiseColumn &a = task.filter[0], &b = task.filter[1], &c = task.filter[2];
  const Vector a0 = broadcast(a.weights[0]), a1 = broadcast(a.weights[1]), a2 = broadcast(a.weights[2]);
  const Vector b0 = broadcast(b.weights[0]), b1 = broadcast(b.weights[1]), b2 = broadcast(b.weights[2]);
  const Vector c0 = broadcast(c.weights[0]), c1 = broadcast(c.weights[1]), c2 = broadcast(c.weights[2]);
  const float *pa = task.planes + a.offsets[0], *pb = task.planes + b.offsets[0], *pc = task.planes + c.offsets[0];
  // The step from filter row to filter row is the same in every column.
  const ptrdiff_t one = a.offsets[1] - a.offsets[0], two = a.offsets[2] - a.offsets[0];
  const Vector bias = broadcast(task.bias), low = broadcast(task.clip.low), high = broadcast(task.clip.high);
  const int32_t *left = a.mask, *right = c.mask;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < pixels; pixel += kLanes) {
    Vector first = a0 * load(pa + pixel), middle = bias + b0 * load(pb + pixel), last = c0 * load(pc + pixel);
    first += a1 * load(pa + one + pixel);
    middle += b1 * load(pb + one + pixel);
    last += c1 * load(pc + one + pixel);
    first += a2 * load(pa + two + pixel);
    middle += b2 * load(pb + two + pixel);
    last += c2 * load(pc + two + pixel);
    Vector acc = middle + masked(first, load_mask(left + mask_index)) + masked(last, load_mask(right + mask_index));
    acc = acc < low ? low : acc;
    acc = acc > high ? high : acc;
    mask_index += kLanes;
    if (mask_index == period) mask_index = 0;
    if (pixel + kLanes <= pixels) {
      store(y + pixel, acc);
    } else {
      store_partial(y + pixel, acc, static_cast<int>(pixels - pixel));
    }
  }
}

// 1×1: scale and shift. Reads nothing past the last pixel.
void filter_1x1(const DepthwiseTask& task) {
  const Vector weight = broadcast(task.filter[0].weights[0]), bias = broadcast(task.bias);
  const float* x = task.planes + task.filter[0].offsets[0];
  const size_t pixels = task.pixels, whole = pixels / kLanes * kLanes;
  const Clip clip = task.clip;
  float* y = task.y;
  for (size_t pixel = 0; pixel < whole; pixel += kLanes) {
    store(y + pixel, clamp(bias + weight * load(x + pixel), clip));
  }
  if (whole == pixels) return;
  const Vector tail = clamp(bias + weight * load_partial(x + whole, static_cast<int>(pixels - whole)), clip);
  store_partial(y + whole, tail, static_cast<int>(pixels - whole));
}

void filter_channel(const DepthwiseTask& task) {
  if (task.rows == 1 && task.columns == 1) return filter_1x1(task);
  const bool masked_3x3 = task.rows == 3 && task.columns == 3 && task.filter[0].mask != nullptr &&
                          task.filter[1].mask == nullptr && task.filter[2].mask != nullptr;
  if (masked_3x3) return filter_3x3(task);
  task.rows == 5 && task.columns == 5 ? filter_5x5(task) : filter_generic<0, 0>(task);
}
