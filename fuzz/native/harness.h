// Shared by the harnesses: numbers drawn from the fuzzer's bytes; weights and activations that are small integers,
// whose sums are exact in any order; and loops whose chunks run serially.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <vector>

#include "../../native/conv.h"
#include "../../native/cpu.h"
#include "../../native/packed.h"
#include "../../native/threads.h"

namespace harness {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Numbers from the input; zeros past its end.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), end_(data + size) {}

  std::uint32_t byte() { return data_ == end_ ? 0 : *data_++; }
  bool flag() { return byte() % 2 != 0; }
  std::int64_t range(std::int64_t low, std::int64_t high) {
    const std::int64_t number = byte() * 256 + byte();
    return low + number % (high - low + 1);
  }
  // Mostly small, sometimes very large or invalid.
  std::int64_t odd(std::int64_t low) {
    static constexpr std::int64_t kFar[] = {-1, 0, 16, 17, 63, 64, 65, 255, 1000, 65535, 65536, 65537};
    const std::uint32_t kind = byte();
    return kind < 240 ? low + kind % 8 : kFar[kind % 12];
  }
  std::int64_t rest() const { return end_ - data_; }

 private:
  const std::uint8_t* data_;
  const std::uint8_t* end_;
};

// Pseudorandom small integers.
class Integers {
 public:
  explicit Integers(std::uint32_t seed) : state_(seed * 2654435761u + 1) {}
  std::uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
  }
  float number() { return static_cast<float>(static_cast<int>(next() % 15) - 7); }
  std::vector<float> numbers(std::size_t count) {
    std::vector<float> found(count);
    for (float& each : found) each = number();
    return found;
  }

 private:
  std::uint32_t state_;
};

// A matrix with `percent` of its entries stored, some of which may have the value zero.
inline rigl::SparseMatrix sparse_matrix(Integers* integers, std::uint32_t rows, std::uint32_t columns,
                                        std::uint32_t percent) {
  rigl::SparseMatrix matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.row_ptr.push_back(0);
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t column = 0; column < columns; ++column) {
      if (integers->next() % 100 >= percent) continue;
      matrix.col_idx.push_back(column);
      matrix.values.push_back(integers->number());
    }
    matrix.row_ptr.push_back(matrix.col_idx.size());
  }
  return matrix;
}

inline void run_serially(void*, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  for (std::size_t i = 0; i < total; ++i) task(user, i);
}

// The chunks of this many threads, however little work there is.
inline rigl::Threads serial_threads(int count) { return {count, run_serially, nullptr, 0.0}; }

inline const rigl::KernelTable& kernels(std::uint32_t number) {
  const rigl::KernelTable* all[] = {rigl::portable_kernels(), rigl::avx2_kernels(), rigl::avx512_kernels()};
  const rigl::KernelTable* chosen = all[number % 3];
  return chosen == nullptr ? *rigl::portable_kernels() : *chosen;
}

inline float clipped(double value, const rigl::Clip& clip) {
  const float found = static_cast<float>(value);
  return found < clip.low ? clip.low : found > clip.high ? clip.high : found;
}

inline void check(const char* what, const std::vector<float>& found, const std::vector<float>& expected,
                  float allowed) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::fabs(found[i] - expected[i]) <= allowed) continue;  // NaN is never close
    std::fprintf(stderr, "%s: number %zu of %zu is %g instead of %g\n", what, i, expected.size(),
                 static_cast<double>(found[i]), static_cast<double>(expected[i]));
    std::abort();
  }
}

// A clipped or an unlimited output.
inline rigl::Clip clip(Bytes* bytes) {
  return bytes->flag() ? rigl::Clip{0.0f, 60.0f} : rigl::Clip{-kInfinity, kInfinity};
}

inline rigl::Axis axis(Bytes* bytes) {
  rigl::Axis axis;
  axis.kernel = bytes->odd(1);
  axis.stride = bytes->odd(1);
  axis.dilation = bytes->odd(1);
  axis.pad_begin = bytes->odd(0);
  axis.pad_end = bytes->odd(0);
  return axis;
}

inline rigl::ConvShape conv_shape(Bytes* bytes) {
  rigl::ConvShape shape;
  shape.rows = axis(bytes);
  shape.columns = axis(bytes);
  return shape;
}

inline bool valid(const rigl::ConvShape& shape) {
  return rigl::check_axis(shape.rows).empty() && rigl::check_axis(shape.columns).empty();
}

// A batch of images and the size of its output; `fit` is false if the output is empty or too large to check.
struct Images {
  std::size_t batch, channels, rows;
  std::int64_t height, width, out_height, out_width;

  void resize(Bytes* bytes) {
    batch = static_cast<std::size_t>(bytes->range(0, 3));
    height = bytes->range(0, 40);
    width = bytes->range(0, 70);
  }
  bool fit(const rigl::ConvShape& shape, double most) {
    out_height = shape.rows.output(height);
    out_width = shape.columns.output(width);
    const double outputs = static_cast<double>(out_height) * static_cast<double>(out_width) * static_cast<double>(rows);
    return out_height > 0 && out_width > 0 && outputs * static_cast<double>(batch) < most;
  }
  // The pixel that a filter tap reads for output `p`; -1: it lies in the padding.
  std::int64_t pixel(const rigl::ConvShape& shape, std::int64_t p, std::int64_t tap) const {
    const std::int64_t r =
        p / out_width * shape.rows.stride - shape.rows.pad_begin + tap / shape.columns.kernel * shape.rows.dilation;
    const std::int64_t c = p % out_width * shape.columns.stride - shape.columns.pad_begin +
                           tap % shape.columns.kernel * shape.columns.dilation;
    return r < 0 || r >= height || c < 0 || c >= width ? -1 : r * width + c;
  }
  std::size_t inputs() const { return batch * channels * static_cast<std::size_t>(height * width); }
  std::size_t outputs() const { return batch * rows * static_cast<std::size_t>(out_height * out_width); }
};

}  // namespace harness
