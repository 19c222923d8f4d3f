// Activations of an epilogue. Included by `kernels_body.h`, inside its namespace.

// e^x between e^-86 and e^87: a polynomial, off by 2e-9, times a power of two, which is added to the exponent bits.
RIGL_INLINE Vector exp(Vector x) {
  x = clamp(x, {-86.0f, 87.0f});
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which the lowest bits hold
  const Vector shifted = x * 1.44269504f + kRound, power = shifted - kRound;
  const Vector rest = x - power * 0.693359375f + power * 2.12194440e-4f;  // ln 2 in two parts, the first exact
  Vector sum = broadcast(0.00139560647f);
  sum = sum * rest + 0.00837513496f;
  sum = sum * rest + 0.0416660834f;
  sum = sum * rest + 0.166664154f;
  sum = sum * rest + 0.500000017f;
  sum = sum * rest + 1.0f;
  sum = sum * rest + 1.0f;
  return (Vector)((Bits)sum + ((Bits)shifted << 23));
}

// 1 + e^-x by a power of two, in which a rounding error of the exponent matters less than in e^x: for large exponents
// the sigmoid is near 0 or 1.
RIGL_INLINE Vector sigmoid_divisor(Vector x) {
  const Vector exponent = clamp(x * -1.44269504f, {-126.0f, 126.0f});
  constexpr float kRound = 12582912.0f;  // as in `exp`
  const Vector shifted = exponent + kRound, rest = exponent - (shifted - kRound);
  Vector sum = broadcast(0.00132764701f);
  sum = sum * rest + 0.00967554189f;
  sum = sum * rest + 0.0555071346f;
  sum = sum * rest + 0.240221202f;
  sum = sum * rest + 0.693146944f;
  sum = sum * rest + 1.00000012f;
  return 1.0f + (Vector)((Bits)sum + ((Bits)shifted << 23));
}

RIGL_INLINE Vector sigmoid(Vector x) { return 1.0f / sigmoid_divisor(x); }
RIGL_INLINE Vector silu(Vector x) { return x / sigmoid_divisor(x); }

RIGL_INLINE Vector absolute(Vector x) { return (Vector)((Mask)x & 0x7fffffff); }

// A polynomial around zero, where the difference of two numbers near one would cancel.
RIGL_INLINE Vector tanh(Vector x) {
  const Vector size = absolute(x), square = x * x;
  Vector small = broadcast(-0.0054821475f);
  small = small * square + 0.0204298756f;
  small = small * square - 0.0536707188f;
  small = small * square + 0.133304974f;
  small = small * square - 0.333332336f;
  small = small * square + 1.0f;
  const Vector large = 2.0f * sigmoid(2.0f * x) - 1.0f;
  return size < 0.65f ? x * small : large;
}

// x * (1 + erf(x / √2)) / 2, with erfc(|x| / √2) = e^(|x| * polynomial). Off by less than the rounding of the result.
RIGL_INLINE Vector gelu(Vector x) {
  const Vector size = clamp(absolute(x), {0.0f, 14.0f});  // beyond, e to this power is zero
  const Vector square = size * size, fourth = square * square;
  const Vector low = (-0.797890444f - 0.318258634f * size) + square * (-0.0365022662f + 0.00505482337f * size);
  const Vector high = (-2.12989658e-4f - 8.1155438e-5f * size) + square * (1.7355682e-5f - 1.14315743e-6f * size);
  const Vector slope = low + fourth * high;
  const Vector half = 0.5f * exp(size * slope);
  return x * (x < 0.0f ? half : 1.0f - half);
}

// The form with tanh: (1 + tanh u) / 2 is the sigmoid of 2 u.
RIGL_INLINE Vector gelu_tanh(Vector x) {
  constexpr float kScale = 1.59576912f;  // 2 * √(2 / π)
  return x * sigmoid(x * (kScale + kScale * 0.044715f * x * x));
}

RIGL_INLINE Vector hard_swish(Vector x) { return x * clamp(x * (1.0f / 6.0f) + 0.5f, {0.0f, 1.0f}); }

template <class Function>
RIGL_INLINE void map_row(float* values, size_t count, const Function& function) {
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) store(values + i, function(load(values + i)));
  if (whole == count) return;
  const Vector tail = function(load_partial(values + whole, static_cast<int>(count - whole)));
  store_partial(values + whole, tail, static_cast<int>(count - whole));
}

// Many rows in one loop: a vector takes a chain of some thirty instructions, which overlap with those of others.
template <class Function>
void map_in_place(float* values, size_t rows, size_t count, size_t pitch, const Function& function) {
  for (size_t row = 0; row < rows; ++row) map_row(values + row * pitch, count, function);
}

void activate(Activation activation, float* values, size_t rows, size_t count, size_t pitch) {
  switch (activation) {
    case Activation::kNone: return;
    case Activation::kGelu: return map_in_place(values, rows, count, pitch, [](Vector x) { return gelu(x); });
    case Activation::kGeluTanh: return map_in_place(values, rows, count, pitch, [](Vector x) { return gelu_tanh(x); });
    case Activation::kSilu: return map_in_place(values, rows, count, pitch, [](Vector x) { return silu(x); });
    case Activation::kSigmoid: return map_in_place(values, rows, count, pitch, [](Vector x) { return sigmoid(x); });
    case Activation::kTanh: return map_in_place(values, rows, count, pitch, [](Vector x) { return tanh(x); });
    case Activation::kHardSwish:
      return map_in_place(values, rows, count, pitch, [](Vector x) { return hard_swish(x); });
  }
}
