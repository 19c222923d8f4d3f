// SparseGRU: inputs products of the inputs, packed weights, bias of the candidate, initial state, sequence lengths;
// outputs all states, last state.
#include <memory>

#include "cpu.h"
#include "custom_op.h"
#include "gru.h"
#include "ops.h"

namespace rigl {
namespace {

GruShape gru_shape(const ort::Api& api, const ort::KernelInfo* info) {
  const auto backward = integers(api, info, "backward"), reset_after = integers(api, info, "reset_after");
  if (backward.empty() || backward.size() > 2 || reset_after.size() != 1) {
    throw KernelError("expected one or two values in backward and one in reset_after");
  }
  GruShape shape;
  shape.directions = static_cast<std::int32_t>(backward.size());
  for (std::size_t d = 0; d < backward.size(); ++d) shape.backward[d] = backward[d] != 0;
  shape.reset_after = reset_after[0] != 0;
  return shape;
}

struct GruKernel {
  OpSettings settings;
  std::unique_ptr<SparseGru> gru;

  static constexpr const char* kName = "SparseGRU";
  static constexpr std::size_t kInputs = 5, kOutputs = 2;
  static ort::ElementType input_type(std::size_t i) {
    return i == 1 ? ort::kUint8 : i == 4 ? ort::kInt32 : ort::kFloat;
  }

  GruKernel(const ort::Api& api, const ort::KernelInfo* info) : settings(api, info) {
    const GruShape shape = gru_shape(api, info);
    const SparseMatrix matrix = packed_weights(api, info);
    require_valid(check_gru(matrix, shape));
    gru = std::make_unique<SparseGru>(matrix, shape, kernels());
  }

  void compute(ort::KernelContext* context) {
    const auto x = input<float>(settings.api, context, 0), bias = input<float>(settings.api, context, 2);
    const auto initial = input<float>(settings.api, context, 3);
    const auto lengths = input<std::int32_t>(settings.api, context, 4);
    const auto size = static_cast<std::int64_t>(gru->size());
    const auto directions = static_cast<std::int64_t>(gru->directions());
    if (x.shape.size() != 3 || x.shape[2] != directions * 3 * size) {
      throw KernelError("the last axis of the input does not have the rows of the packed weights");
    }
    const std::int64_t steps = x.shape[0], batch = x.shape[1];
    const Shape last = {directions, batch, size};
    if (initial.present && initial.shape != last) {
      throw KernelError("the initial state does not have the shape [directions, batch, size]");
    }
    if (lengths.present) check_lengths(lengths, steps, batch);
    float* y = output(settings.api, context, {steps, directions, batch, size});
    float* y_last = output(settings.api, context, last, 1);
    SessionThreads session(settings, context);
    gru->run({x.data, static_cast<std::size_t>(steps), static_cast<std::size_t>(batch),
              bias_of(bias, gru->directions() * gru->size()), initial.data, lengths.data, y, y_last},
             session.threads());
  }
};

}  // namespace

ort::CustomOp gru_op() { return make_custom_op<GruKernel>(); }

}  // namespace rigl
