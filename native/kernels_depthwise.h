// Filters of one channel each, which are not sparse. Included by `kernels_body.h`, within its namespace.

// The sum over the rows of one column of the filter; what lies beside the image is cut out of it.
template <int kRows>
RIGL_INLINE Vector column_sum(const DepthwiseTask& task, const DepthwiseColumn& column, size_t place, size_t in_mask) {
  const int rows = kRows > 0 ? kRows : task.rows;
  Vector sums{};
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r) sums += column.weights[r] * load(task.planes + column.offsets[r] + place);
  return column.mask == nullptr ? sums : masked(sums, load_mask(column.mask + in_mask));
}

void filter_any(const DepthwiseTask& task) {
  size_t in_mask = 0;
  for (size_t place = 0; place < task.pixels; place += kLanes) {
    Vector sums = spread(task.bias);
    for (int c = 0; c < task.columns; ++c) sums += column_sum<0>(task, task.filter[c], place, in_mask);
    sums = clipped(sums, task.clip);
    const size_t left = task.pixels - place;
    memcpy(task.y + place, &sums, sizeof(float) * (left < kLanes ? left : kLanes));
    in_mask += kLanes;
    if (in_mask == task.mask_period) in_mask = 0;
  }
}

// Three by three, the outer columns masked. All that is used lies in local variables: for all the compiler knows, a store
// into the output could change the task.
void filter_three(const DepthwiseTask& task) {
  const DepthwiseColumn &a = task.filter[0], &b = task.filter[1], &c = task.filter[2];
  const Vector a0 = spread(a.weights[0]), a1 = spread(a.weights[1]), a2 = spread(a.weights[2]);
  const Vector b0 = spread(b.weights[0]), b1 = spread(b.weights[1]), b2 = spread(b.weights[2]);
  const Vector c0 = spread(c.weights[0]), c1 = spread(c.weights[1]), c2 = spread(c.weights[2]);
  const float *pa = task.planes + a.offsets[0], *pb = task.planes + b.offsets[0], *pc = task.planes + c.offsets[0];
  // From row to row of the filter the step is the same in every column.
  const ptrdiff_t one = a.offsets[1] - a.offsets[0], two = a.offsets[2] - a.offsets[0];
  const Vector bias = spread(task.bias), low = spread(task.clip.low), high = spread(task.clip.high);
  const int32_t *left = a.mask, *right = c.mask;
  const size_t pixels = task.pixels, period = task.mask_period;
  float* y = task.y;
  size_t in_mask = 0;
  for (size_t place = 0; place < pixels; place += kLanes) {
    Vector first = a0 * load(pa + place), middle = bias + b0 * load(pb + place), last = c0 * load(pc + place);
    first += a1 * load(pa + one + place);
    middle += b1 * load(pb + one + place);
    last += c1 * load(pc + one + place);
    first += a2 * load(pa + two + place);
    middle += b2 * load(pb + two + place);
    last += c2 * load(pc + two + place);
    Vector sums = middle + masked(first, load_mask(left + in_mask)) + masked(last, load_mask(right + in_mask));
    sums = sums < low ? low : sums;
    sums = sums > high ? high : sums;
    in_mask += kLanes;
    if (in_mask == period) in_mask = 0;
    if (place + kLanes <= pixels) {
      store(y + place, sums);
    } else {
      memcpy(y + place, &sums, sizeof(float) * (pixels - place));
    }
  }
}

// One by one: scaled and shifted. Nothing behind the last pixel is read.
void filter_one(const DepthwiseTask& task) {
  const Vector weight = spread(task.filter[0].weights[0]), bias = spread(task.bias);
  const float* x = task.planes + task.filter[0].offsets[0];
  const size_t pixels = task.pixels, whole = pixels / kLanes * kLanes;
  const Clip clip = task.clip;
  float* y = task.y;
  for (size_t place = 0; place < whole; place += kLanes) {
    store(y + place, clipped(bias + weight * load(x + place), clip));
  }
  if (whole == pixels) return;
  const Vector end = clipped(bias + weight * load_part(x + whole, static_cast<int>(pixels - whole)), clip);
  memcpy(y + whole, &end, sizeof(float) * (pixels - whole));
}

void filter_channel(const DepthwiseTask& task) {
  if (task.rows == 1 && task.columns == 1) return filter_one(task);
  const bool three = task.rows == 3 && task.columns == 3 && task.filter[0].mask != nullptr &&
                     task.filter[1].mask == nullptr && task.filter[2].mask != nullptr;
  three ? filter_three(task) : filter_any(task);
}
