// SparseMatMul: inputs x, packed weights, bias.
#include "cpu.h"
#include "custom_op.h"
#include "matmul.h"
#include "ops.h"

namespace rigl {
namespace {

struct MatMulKernel {
  OpSettings settings;
  SparseMatMul product;
  const float* fixed_bias;
  bool x_by_column, y_by_column;

  static constexpr const char* kName = "SparseMatMul";
  static constexpr std::size_t kInputs = 3, kOutputs = 1;
  static ort::ElementType input_type(std::size_t i) { return i == 1 ? ort::kUint8 : ort::kFloat; }

  MatMulKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info),
        product(packed_weights(api, info), kernels()),
        fixed_bias(constant_floats(api, info, 2, product.matrix().rows)),
        x_by_column(attribute(api, info, "x_by_column", std::int64_t{0}) != 0),
        y_by_column(attribute(api, info, "y_by_column", std::int64_t{0}) != 0) {}

  void compute(ort::KernelContext* context) {
    const auto x = input<float>(settings.api, context, 0);
    const StoredMatrix& matrix = product.matrix();
    if (x.shape.empty() || x.shape.back() != static_cast<std::int64_t>(matrix.columns)) {
      throw KernelError("the last axis of the input does not have the columns of the packed weights");
    }
    const float* bias = fixed_bias;
    if (bias == nullptr) bias = bias_of(input<float>(settings.api, context, 2), matrix.rows);
    Shape out = x.shape;
    out.back() = matrix.rows;
    float* y = output(settings.api, context, out);
    const std::size_t batch = element_count(x.shape) / matrix.columns;
    SessionThreads session(settings, context);
    product.run({x.data, batch, bias, y, x_by_column, y_by_column, settings.clip, settings.activation},
                session.threads());
  }
};

}  // namespace

ort::CustomOp matmul_op() { return make_custom_op<MatMulKernel>(); }

}  // namespace rigl
