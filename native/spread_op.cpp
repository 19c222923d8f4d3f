// SpreadPixels: input x [batch][channels * side * side][height][width], output [batch][channels][height * side][width *
// side]. Each output pixel of a block of side × side is taken from another input channel. DepthToSpace of ONNX in the
// order "CRD".
#include "cpu.h"
#include "custom_op.h"
#include "ops.h"

namespace rigl {
namespace {

// Nanoseconds per number moved.
constexpr double kMoveCost = 0.1;

struct SpreadKernel {
  OpSettings settings;
  std::int64_t side;

  static constexpr const char* kName = "SpreadPixels";
  static constexpr std::size_t kInputs = 1, kOutputs = 1;
  static ort::ElementType input_type(std::size_t) { return ort::kFloat; }

  SpreadKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info), side(attribute(api, info, "blocksize", std::int64_t{0})) {
    if (side < 1 || side > 65536) throw KernelError("expected a blocksize between 1 and 65536");
  }

  void compute(ort::KernelContext* context) {
    const auto x = input<float>(settings.api, context, 0);
    if (x.shape.size() != 4 || x.shape[1] % (side * side) != 0) {
      throw KernelError("the channels of the input are not a multiple of the block");
    }
    const std::int64_t height = x.shape[2], width = x.shape[3];
    const Shape shape = {x.shape[0], x.shape[1] / (side * side), height * side, width * side};
    float* y = output(settings.api, context, shape);
    const std::size_t step = static_cast<std::size_t>(side), columns = static_cast<std::size_t>(width);
    const std::size_t rows = static_cast<std::size_t>(height), plane = rows * columns;
    const KernelTable& loops = kernels();
    SessionThreads session(settings, context);
    const Threads threads = session.threads().limited_to(static_cast<double>(element_count(shape)) * kMoveCost);
    parallel_for(threads, element_count(x.shape) == 0 ? 0 : static_cast<std::size_t>(shape[0] * shape[1]),
                 [&](std::size_t channel) {
                   const float* from = x.data + channel * step * step * plane;
                   float* to = y + channel * step * step * plane;
                   for (std::size_t i = 0; i < rows * step; ++i, to += columns * step) {
                     const float* row = from + i % step * step * plane + i / step * columns;
                     loops.interleave(row, plane, step, columns, to);
                   }
                 });
  }
};

}  // namespace

ort::CustomOp spread_op() { return make_custom_op<SpreadKernel>(); }

}  // namespace rigl
