// SparseLSTM: inputs products of the inputs, packed weights, none, initial state, sequence lengths, initial cell;
// outputs all states, last state, last cell. SparseRNN: the same without cells.
#include <memory>

#include "cpu.h"
#include "custom_op.h"
#include "lstm.h"
#include "ops.h"

namespace rigl {
namespace {

LstmShape lstm_shape(const ort::Api& api, const ort::KernelInfo* info, std::int32_t gates, Activation activation) {
  const auto backward = integers(api, info, "backward");
  if (backward.empty() || backward.size() > 2) throw KernelError("expected one or two values in backward");
  LstmShape shape;
  shape.directions = static_cast<std::int32_t>(backward.size());
  for (std::size_t d = 0; d < backward.size(); ++d) shape.backward[d] = backward[d] != 0;
  shape.gates = gates;
  shape.activation = activation;
  return shape;
}

template <bool kWithCell>
struct LstmKernel {
  OpSettings settings;
  std::unique_ptr<SparseLstm> lstm;

  static constexpr const char* kName = kWithCell ? "SparseLSTM" : "SparseRNN";
  static constexpr std::size_t kInputs = kWithCell ? 6 : 5, kOutputs = kWithCell ? 3 : 2;
  static ort::ElementType input_type(std::size_t i) {
    return i == 1 ? ort::kUint8 : i == 4 ? ort::kInt32 : ort::kFloat;
  }

  LstmKernel(const ort::Api& api, const ort::KernelInfo* info) : settings(api, info) {
    const LstmShape shape = lstm_shape(api, info, kWithCell ? 4 : 1, settings.activation);
    const SparseMatrix matrix = packed_weights(api, info);
    require_valid(check_lstm(matrix, shape));
    lstm = std::make_unique<SparseLstm>(matrix, shape, kernels());
  }

  void compute(ort::KernelContext* context) {
    const auto x = input<float>(settings.api, context, 0), initial = input<float>(settings.api, context, 3);
    const auto lengths = input<std::int32_t>(settings.api, context, 4);
    const auto cell = kWithCell ? input<float>(settings.api, context, 5) : Tensor<float>();
    const auto size = static_cast<std::int64_t>(lstm->size());
    const auto directions = static_cast<std::int64_t>(lstm->directions());
    if (x.shape.size() != 3 || x.shape[2] != directions * static_cast<std::int64_t>(lstm->gates()) * size) {
      throw KernelError("the last axis of the input does not have the rows of the packed weights");
    }
    const std::int64_t steps = x.shape[0], batch = x.shape[1];
    const Shape last = {directions, batch, size};
    if ((initial.present && initial.shape != last) || (cell.present && cell.shape != last)) {
      throw KernelError("the initial state does not have the shape [directions, batch, size]");
    }
    if (lengths.present) check_lengths(lengths, steps, batch);
    float* y = output(settings.api, context, {steps, directions, batch, size});
    float* y_last = output(settings.api, context, last, 1);
    float* y_cell = kWithCell ? output(settings.api, context, last, 2) : nullptr;
    SessionThreads session(settings, context);
    lstm->run({x.data, static_cast<std::size_t>(steps), static_cast<std::size_t>(batch), initial.data, cell.data,
               lengths.data, y, y_last, y_cell},
              session.threads());
  }
};

}  // namespace

ort::CustomOp lstm_op() { return make_custom_op<LstmKernel<true>>(); }
ort::CustomOp rnn_op() { return make_custom_op<LstmKernel<false>>(); }

}  // namespace rigl
