#include "train_mask.h"

#include <algorithm>
#include <vector>

namespace rigl {
namespace {

constexpr std::size_t kPart = 1 << 16;  // elements that one thread takes at once
constexpr double kNanosecondsEach = 0.1;

}  // namespace

void mask_tensors(const TrainKernels& kernels, const MaskedTensor* tensors, std::size_t count, const Threads& threads) {
  std::vector<MaskedTensor> parts;
  double total = 0;
  for (const MaskedTensor* each = tensors; each != tensors + count; ++each) {
    total += static_cast<double>(each->count);
    for (std::size_t begin = 0; begin < each->count; begin += kPart) {
      parts.push_back({each->values + begin, each->active + begin, std::min(kPart, each->count - begin)});
    }
  }
  parallel_for(threads.limited_to(total * kNanosecondsEach), parts.size(),
               [&](std::size_t i) { kernels.mask(parts[i].values, parts[i].active, parts[i].count); });
}

}  // namespace rigl
