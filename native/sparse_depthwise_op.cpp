// SparseDepthwise: inputs x, packed weights of the 1×1 convolution, its bias, filters, their bias; outputs the filtered
// image and, where there is a second output, the mean of each of its channels.
#include <memory>
#include <utility>
#include <vector>

#include "cpu.h"
#include "custom_op.h"
#include "ops.h"
#include "sparse_depthwise.h"

namespace rigl {
namespace {

struct SparseDepthwiseKernel {
  OpSettings settings;
  Epilogue inner;
  bool with_means;
  std::unique_ptr<SparseDepthwise> conv;

  static constexpr const char* kName = "SparseDepthwise";
  static constexpr std::size_t kInputs = 5, kOutputs = 2;
  static ort::ElementType input_type(std::size_t i) { return i == 1 ? ort::kUint8 : ort::kFloat; }

  SparseDepthwiseKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info),
        inner(epilogue(api, info, "inner_")),
        with_means(attribute(api, info, "with_means", std::int64_t{0}) != 0) {
    const ConvShape shape = conv_shape(api, info);
    SparseMatrix matrix = packed_weights(api, info);
    std::vector<float> filters = dense_weights(api, info, 3);
    require_valid(check_sparse_depthwise(matrix, filters, shape));
    conv = std::make_unique<SparseDepthwise>(std::move(matrix), std::move(filters), shape, kernels());
  }

  void compute(ort::KernelContext* context) {
    const auto x = input<float>(settings.api, context, 0);
    const auto inner_bias = input<float>(settings.api, context, 2), bias = input<float>(settings.api, context, 4);
    if (x.shape.size() != 4 || x.shape[1] != static_cast<std::int64_t>(conv->columns())) {
      throw KernelError("the input does not have the channels of the packed weights");
    }
    const std::int64_t height = conv->shape().rows.output(x.shape[2]), width = conv->shape().columns.output(x.shape[3]);
    if (height < 1 || width < 1) throw KernelError("the input is smaller than the kernel");
    const auto channels = static_cast<std::int64_t>(conv->channels());
    float* y = output(settings.api, context, {x.shape[0], channels, height, width});
    float* means = with_means ? output(settings.api, context, {x.shape[0], channels, 1, 1}, 1) : nullptr;
    SessionThreads session(settings, context);
    conv->run({{x.data, static_cast<std::size_t>(x.shape[0]), x.shape[2], x.shape[3], bias_of(bias, conv->channels()),
                nullptr, y, settings.clip, settings.activation},
               bias_of(inner_bias, conv->channels()),
               inner.clip,
               inner.activation,
               means},
              session.threads());
  }
};

}  // namespace

ort::CustomOp sparse_depthwise_op() {
  ort::CustomOp op = make_custom_op<SparseDepthwiseKernel>();
  op.get_output_characteristic = first_required;
  return op;
}

}  // namespace rigl
