// SparseConv: inputs x, packed weights, bias, residual, a factor for each channel of x.
#include <memory>
#include <new>
#include <utility>

#include "conv.h"
#include "cpu.h"
#include "custom_op.h"
#include "ops.h"

namespace rigl {
namespace {

struct ConvKernel {
  OpSettings settings;
  bool one_axis;
  std::unique_ptr<SparseConv> conv;

  static constexpr const char* kName = "SparseConv";
  static constexpr std::size_t kInputs = 5, kOutputs = 1;
  static ort::ElementType input_type(std::size_t i) { return i == 1 ? ort::kUint8 : ort::kFloat; }

  ConvKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info), one_axis(integers(api, info, "kernel_shape").size() == 1) {
    const ConvShape shape = conv_shape(api, info);
    SparseMatrix matrix = packed_weights(api, info);
    require_valid(check_conv(matrix, shape));
    conv = std::make_unique<SparseConv>(std::move(matrix), shape, kernels());
  }

  Shape output_shape(const Shape& x) const {
    const std::size_t rank = one_axis ? 3 : 4;
    if (x.size() != rank || x[1] != static_cast<std::int64_t>(conv->channels())) {
      throw KernelError("the input does not have the channels of the packed weights");
    }
    const std::int64_t height = conv->shape().rows.output(one_axis ? 1 : x[2]);
    const std::int64_t width = conv->shape().columns.output(x[rank - 1]);
    if (height < 1 || width < 1) throw KernelError("the input is smaller than the kernel");
    const auto rows = static_cast<std::int64_t>(conv->rows());
    return one_axis ? Shape{x[0], rows, width} : Shape{x[0], rows, height, width};
  }

  void compute(ort::KernelContext* context) {
    const auto x = input<float>(settings.api, context, 0), bias = input<float>(settings.api, context, 2);
    const auto residual = input<float>(settings.api, context, 3);
    const auto scale = input<float>(settings.api, context, 4);
    const Shape out = output_shape(x.shape);
    if (residual.present && residual.shape != out) {
      throw KernelError("the residual does not have the shape of the output");
    }
    if (scale.present && scale.shape != Shape{x.shape[0], x.shape[1], 1, 1}) {
      throw KernelError("the factors do not have the shape [batch, channels, 1, 1] of the input");
    }
    float* y = output(settings.api, context, out);
    SessionThreads session(settings, context);
    conv->run({x.data, static_cast<std::size_t>(x.shape[0]), one_axis ? 1 : x.shape[2], x.shape.back(),
               bias_of(bias, conv->rows()), residual.data, y, settings.clip, settings.activation, scale.data},
              session.threads());
  }
};

// The output may take the memory of the residual: each element is read before it is written.
void release_in_place(int* inputs, int* outputs) noexcept {
  delete inputs;
  delete outputs;
}

std::size_t residual_in_place(int** inputs, int** outputs) noexcept {
  *inputs = new (std::nothrow) int(3);
  *outputs = new (std::nothrow) int(0);
  if (*inputs != nullptr && *outputs != nullptr) return 1;
  release_in_place(*inputs, *outputs);
  *inputs = *outputs = nullptr;
  return 0;
}

}  // namespace

ort::CustomOp conv_op() {
  ort::CustomOp op = make_custom_op<ConvKernel>();
  op.get_may_inplace = residual_in_place;
  op.release_may_inplace = release_in_place;
  return op;
}

}  // namespace rigl
