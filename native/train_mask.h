// Zeroing of inactive weights and gradients: dense tensors times masks of a byte for each element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads.h"
#include "train_kernels.h"

namespace rigl {

// models/mask_kernels.py declares this struct for ctypes.
struct MaskedTensor {
  float* values;
  const std::uint8_t* active;  // 1 where a value stays, 0 elsewhere
  std::size_t count;
};

void mask_tensors(const TrainKernels& kernels, const MaskedTensor* tensors, std::size_t count, const Threads& threads);

}  // namespace rigl
