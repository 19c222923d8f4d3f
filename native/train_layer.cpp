#include "train_layer.h"

#include <limits>
#include <string>

#include "train_conv.h"
#include "train_linear.h"

namespace rigl {

const TrainKernels& train_kernels(const KernelTable& kernels) {
  const std::string name = kernels.name;
  const TrainKernels* found = name == "avx512" ? avx512_train_kernels()
                              : name == "avx2" ? avx2_train_kernels()
                                               : nullptr;
  return found != nullptr ? *found : *portable_train_kernels();
}

const char* check_train(const TrainShape& shape, const std::int64_t* positions, std::size_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t size : {shape.inputs, shape.outputs, shape.groups, shape.kernel[0], shape.kernel[1],
                                  shape.stride[0], shape.stride[1], shape.dilation[0], shape.dilation[1]}) {
    if (size < 1 || size > kMost) return "a size of the layer is not positive";
  }
  if (shape.pad[0] < 0 || shape.pad[1] < 0) return "the padding is negative";
  if (shape.kernel[0] > 255 || shape.kernel[1] > 255) return "the kernel is larger than 255 pixels";
  if (shape.inputs % shape.groups != 0 || shape.outputs % shape.groups != 0)
    return "the groups do not fit the channels";
  if (shape.linear && !shape.is_plain()) return "a linear layer has no window and no groups";
  if (count > std::numeric_limits<std::uint32_t>::max()) return "there are too many connections";
  const std::int64_t row = shape.inputs / shape.groups * shape.kernel[0] * shape.kernel[1];
  for (std::size_t i = 0; i < count; ++i) {
    const bool ascends = i == 0 ? positions[0] >= 0 : positions[i] > positions[i - 1];
    if (!ascends || positions[i] / row >= shape.outputs) return "the positions do not ascend within the weight";
  }
  return nullptr;
}

std::unique_ptr<TrainLayer> make_train_layer(const TrainShape& shape, const std::int64_t* positions, std::size_t count,
                                             const KernelTable& kernels) {
  if (shape.linear) return std::make_unique<TrainLinear>(shape, positions, count, kernels);
  return std::make_unique<TrainConv>(shape, positions, count, train_kernels(kernels));
}

}  // namespace rigl
