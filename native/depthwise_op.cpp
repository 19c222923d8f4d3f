// DepthwiseConv: inputs x, dense weights, bias; outputs the filtered image and, with the attribute `with_means`, the
// mean of each of its channels.
#include <memory>
#include <utility>
#include <vector>

#include "cpu.h"
#include "custom_op.h"
#include "depthwise.h"
#include "ops.h"

namespace rigl {
namespace {

struct DepthwiseKernel {
  OpSettings settings;
  bool with_means;
  std::unique_ptr<DepthwiseConv> conv;

  static constexpr const char* kName = "DepthwiseConv";
  static constexpr std::size_t kInputs = 3, kOutputs = 2;
  static ort::ElementType input_type(std::size_t) { return ort::kFloat; }

  DepthwiseKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info), with_means(attribute(api, info, "with_means", std::int64_t{0}) != 0) {
    const ConvShape shape = conv_shape(api, info);
    std::vector<float> weights = dense_weights(api, info);
    require_valid(check_depthwise(weights, shape));
    conv = std::make_unique<DepthwiseConv>(std::move(weights), shape, kernels());
  }

  void compute(ort::KernelContext* context) {
    const auto x = input<float>(settings.api, context, 0), bias = input<float>(settings.api, context, 2);
    if (x.shape.size() != 4 || x.shape[1] != static_cast<std::int64_t>(conv->channels())) {
      throw KernelError("the input does not have the channels of the weights");
    }
    const std::int64_t height = conv->shape().rows.output(x.shape[2]), width = conv->shape().columns.output(x.shape[3]);
    if (height < 1 || width < 1) throw KernelError("the input is smaller than the kernel");
    float* y = output(settings.api, context, {x.shape[0], x.shape[1], height, width});
    float* means = with_means ? output(settings.api, context, {x.shape[0], x.shape[1], 1, 1}, 1) : nullptr;
    SessionThreads session(settings, context);
    conv->run({x.data, static_cast<std::size_t>(x.shape[0]), x.shape[2], x.shape[3], bias_of(bias, conv->channels()),
               nullptr, y, settings.clip, settings.activation},
              session.threads(), means);
  }
};

}  // namespace

ort::CustomOp depthwise_op() {
  ort::CustomOp op = make_custom_op<DepthwiseKernel>();
  op.get_output_characteristic = first_required;
  return op;
}

}  // namespace rigl
