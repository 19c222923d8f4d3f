// Attention: inputs q, k, v [batch][tokens][features], mask; output [batch][queries][heads * v_size].
#include "attention.h"
#include "cpu.h"
#include "custom_op.h"
#include "ops.h"

namespace rigl {
namespace {

struct AttentionKernel {
  OpSettings settings;
  std::int64_t heads, size, v_size;
  std::vector<std::int64_t> first;  // features of q, k and v with which the first head begins
  float scale;
  bool q_by_column, k_by_column, v_by_column, y_by_column;

  static constexpr const char* kName = "Attention";
  static constexpr std::size_t kInputs = 4, kOutputs = 1;
  static ort::ElementType input_type(std::size_t) { return ort::kFloat; }

  AttentionKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info),
        heads(attribute(api, info, "heads", std::int64_t{0})),
        size(attribute(api, info, "size", std::int64_t{0})),
        v_size(attribute(api, info, "v_size", std::int64_t{0})),
        first(integers(api, info, "first")),
        scale(attribute(api, info, "scale", 1.0f)),
        q_by_column(attribute(api, info, "q_by_column", std::int64_t{0}) != 0),
        k_by_column(attribute(api, info, "k_by_column", std::int64_t{0}) != 0),
        v_by_column(attribute(api, info, "v_by_column", std::int64_t{0}) != 0),
        y_by_column(attribute(api, info, "y_by_column", std::int64_t{0}) != 0) {
    constexpr std::int64_t kLimit = 1 << 20;
    for (const std::int64_t each : {heads, size, v_size}) {
      if (each < 1 || each > kLimit) throw KernelError("heads, size and v_size are not between 1 and 1048576");
    }
    if (first.size() != 3) throw KernelError("expected the first features of q, k and v");
    for (const std::int64_t each : first) {
      if (each < 0 || each > kLimit * kLimit) throw KernelError("a first feature is negative or too large");
    }
  }

  AttentionInput read(const Tensor<float>& value, std::size_t index, std::int64_t width, bool by_column) const {
    const auto& shape = value.shape;
    if (!value.present || shape.size() != 3) throw KernelError("q, k and v do not have three axes");
    if (first[index] + heads * width > shape[2]) throw KernelError("an input has fewer features than the heads read");
    return {value.data, static_cast<std::size_t>(shape[2]), static_cast<std::size_t>(first[index]), by_column};
  }

  void compute(ort::KernelContext* context) {
    const auto q = input<float>(settings.api, context, 0), k = input<float>(settings.api, context, 1);
    const auto v = input<float>(settings.api, context, 2), mask = input<float>(settings.api, context, 3);
    AttentionCall call{};
    call.q = read(q, 0, size, q_by_column);
    call.k = read(k, 1, size, k_by_column);
    call.v = read(v, 2, v_size, v_by_column);
    if (k.shape[0] != q.shape[0] || v.shape[0] != q.shape[0] || v.shape[1] != k.shape[1]) {
      throw KernelError("q, k and v do not have the same number of samples, or k and v of tokens");
    }
    const Shape scores = {q.shape[0], heads, q.shape[1], k.shape[1]};
    if (mask.present) call.mask = read_mask(mask, scores);
    call.y = output(settings.api, context, {q.shape[0], q.shape[1], heads * v_size});
    call.y_by_column = y_by_column;
    const auto count = [](std::int64_t number) { return static_cast<std::size_t>(number); };
    call.batch = count(scores[0]);
    call.heads = count(heads);
    call.queries = count(scores[2]);
    call.keys = count(scores[3]);
    call.size = count(size);
    call.v_size = count(v_size);
    call.scale = scale;
    SessionThreads session(settings, context);
    run_attention(call, kernels(), session.threads());
  }

  // Axes of the mask are the last ones of the scores; those that are 1 are repeated.
  static AttentionMask read_mask(const Tensor<float>& mask, const Shape& scores) {
    std::size_t pitches[4] = {}, pitch = 1;
    const std::size_t missing = 4 - std::min<std::size_t>(mask.shape.size(), 4);
    if (mask.shape.size() > 4) throw KernelError("the mask has more than four axes");
    for (std::size_t axis = 4; axis-- > missing;) {
      const std::int64_t length = mask.shape[axis - missing];
      if (length != 1 && length != scores[axis]) throw KernelError("the mask does not have the shape of the products");
      pitches[axis] = length == 1 ? 0 : pitch;
      pitch *= static_cast<std::size_t>(length);
    }
    return {mask.data, pitches[0], pitches[1], pitches[2], pitches[3]};
  }
};

}  // namespace

ort::CustomOp attention_op() { return make_custom_op<AttentionKernel>(); }

}  // namespace rigl
