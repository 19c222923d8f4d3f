// AddLayerNorm: inputs x, scale, bias, residual; outputs the normalized vectors and, if asked for, the sum before it.
#include <algorithm>
#include <vector>

#include "cpu.h"
#include "custom_op.h"
#include "layer_norm.h"
#include "ops.h"
#include "tiles.h"

namespace rigl {
namespace {

// The shape of a sum of two tensors of the same rank, whose axes are equal or 1.
Shape broadcast_shape(const Shape& a, const Shape& b) {
  if (a.size() != b.size()) throw KernelError("the residual does not have the rank of the input");
  Shape out = a;
  for (std::size_t axis = 0; axis < a.size(); ++axis) {
    if (a[axis] != b[axis] && a[axis] != 1 && b[axis] != 1) {
      throw KernelError("the residual does not have the shape of the input");
    }
    if (a[axis] == 1) out[axis] = b[axis];
  }
  return out;
}

// The data of a tensor repeated along the axes in which it is 1, in the buffer; or its own data if there are none.
const float* repeated(const Tensor<float>& from, const Shape& shape, std::vector<float>* buffer) {
  if (from.shape == shape) return from.data;
  const std::size_t size = static_cast<std::size_t>(shape.back());
  buffer->resize(element_count(shape));
  for (std::size_t row = 0; row < buffer->size() / size; ++row) {
    std::size_t rest = row, source = 0, pitch = 1;
    for (std::size_t axis = shape.size() - 1; axis-- > 0;) {
      const auto length = static_cast<std::size_t>(shape[axis]);
      if (from.shape[axis] != 1) source += rest % length * pitch;
      pitch *= static_cast<std::size_t>(from.shape[axis]);
      rest /= length;
    }
    std::copy_n(from.data + source * size, size, buffer->data() + row * size);
  }
  return buffer->data();
}

// Store a value in tiles row by row.
const float* from_tiles(const Tensor<float>& from, std::vector<float>* buffer) {
  const std::size_t size = static_cast<std::size_t>(from.shape.back()), rows = element_count(from.shape) / size;
  buffer->resize(rows * size);
  if (rows == 0) return buffer->data();
  const Tiles tiles(rows, kernels());
  for (std::size_t t = 0; t < tiles.count; ++t) {
    const std::size_t begin = tiles.begin(t, size), width = tiles.width_of(t);
    kernels().transpose(from.data + begin, width, size, width, buffer->data() + begin, size);
  }
  return buffer->data();
}

struct LayerNormKernel {
  OpSettings settings;
  float epsilon;
  bool with_sum, x_by_column, residual_by_column, y_by_column, sum_by_column;

  static constexpr const char* kName = "AddLayerNorm";
  static constexpr std::size_t kInputs = 4, kOutputs = 2;
  static ort::ElementType input_type(std::size_t) { return ort::kFloat; }

  LayerNormKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info),
        epsilon(attribute(api, info, "epsilon", 1e-5f)),
        with_sum(attribute(api, info, "with_sum", std::int64_t{0}) != 0),
        x_by_column(attribute(api, info, "x_by_column", std::int64_t{0}) != 0),
        residual_by_column(attribute(api, info, "residual_by_column", std::int64_t{0}) != 0),
        y_by_column(attribute(api, info, "y_by_column", std::int64_t{0}) != 0),
        sum_by_column(attribute(api, info, "sum_by_column", std::int64_t{0}) != 0) {}

  void compute(ort::KernelContext* context) {
    auto x = input<float>(settings.api, context, 0), residual = input<float>(settings.api, context, 3);
    const auto scale = input<float>(settings.api, context, 1), bias = input<float>(settings.api, context, 2);
    const std::size_t size = element_count(scale.shape);
    const auto fits = [&](const Shape& shape) {
      return !shape.empty() && shape.back() == static_cast<std::int64_t>(size);
    };
    if (size == 0 || !fits(x.shape) || (residual.present && !fits(residual.shape))) {
      throw KernelError("the last axis of the input does not have the size of the scale");
    }
    const Shape shape = residual.present ? broadcast_shape(x.shape, residual.shape) : x.shape;
    float* y = output(settings.api, context, shape);
    float* sum = with_sum ? output(settings.api, context, shape, 1) : nullptr;
    // Tiles of fewer rows cannot be repeated.
    std::vector<float> more_x, more_residual, plain_x, plain_residual;
    const bool x_tiled = x_by_column && x.shape == shape, added_tiled = residual_by_column && residual.shape == shape;
    if (x_by_column && !x_tiled) x.data = from_tiles(x, &plain_x);
    if (residual.present && residual_by_column && !added_tiled) residual.data = from_tiles(residual, &plain_residual);
    const float* given = repeated(x, shape, &more_x);
    const float* added = residual.present ? repeated(residual, shape, &more_residual) : nullptr;
    const std::size_t rows = element_count(shape) / size;
    SessionThreads session(settings, context);
    normalize_rows({given, added, scale.data, bias_of(bias, size), y, sum, rows, size, epsilon, x_tiled, added_tiled,
                    y_by_column, sum_by_column},
                   kernels(), session.threads());
  }
};

}  // namespace

ort::CustomOp layer_norm_op() {
  ort::CustomOp op = make_custom_op<LayerNormKernel>();
  op.get_output_characteristic = first_required;
  return op;
}

}  // namespace rigl
