// Dense depthwise filters: one per channel. Included by `kernels_body.h`, inside its namespace.

// The sum over the rows of one filter column, masked outside the image.
template <int kRows>
RIGL_INLINE Vector column_sum(const DepthwiseTask& task, const DepthwiseColumn& column, size_t pixel,
                              size_t mask_index) {
  const int rows = kRows > 0 ? kRows : task.rows;
  Vector acc{};
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r) acc += column.weights[r] * load(task.planes + column.offsets[r] + pixel);
  return column.mask == nullptr ? acc : masked(acc, load_mask(column.mask + mask_index));
}

void filter_generic(const DepthwiseTask& task) {
  size_t mask_index = 0;
  for (size_t pixel = 0; pixel < task.pixels; pixel += kLanes) {
    Vector acc = broadcast(task.bias);
    for (int c = 0; c < task.columns; ++c) acc += column_sum<0>(task, task.filter[c], pixel, mask_index);
    acc = clamp(acc, task.clip);
    const size_t remaining = task.pixels - pixel;
    memcpy(task.y + pixel, &acc, sizeof(float) * (remaining < kLanes ? remaining : kLanes));
    mask_index += kLanes;
    if (mask_index == task.mask_period) mask_index = 0;
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
      memcpy(y + pixel, &acc, sizeof(float) * (pixels - pixel));
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
  memcpy(y + whole, &tail, sizeof(float) * (pixels - whole));
}

void filter_channel(const DepthwiseTask& task) {
  if (task.rows == 1 && task.columns == 1) return filter_1x1(task);
  const bool masked_3x3 = task.rows == 3 && task.columns == 3 && task.filter[0].mask != nullptr &&
                          task.filter[1].mask == nullptr && task.filter[2].mask != nullptr;
  masked_3x3 ? filter_3x3(task) : filter_generic(task);
}
