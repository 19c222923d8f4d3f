// A sparse 1×1 convolution whose output only a depthwise one reads. Channel by channel, so that the image between them,
// often six times as large as those before and after, stays in the caches.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "conv.h"
#include "depthwise.h"
#include "kernels.h"
#include "packed.h"
#include "threads.h"

namespace rigl {

struct SparseDepthwiseCall {
  ConvCall conv;            // x is the input of the sparse convolution; the rest is of the depthwise one
  const float* inner_bias;  // of the sparse one, per row, or null
  Clip inner_clip;
  Activation inner_activation;
  float* means;  // of each channel of the output, or null
};

class SparseDepthwise {
 public:
  // Rows of the matrix are the channels of the filters.
  SparseDepthwise(SparseMatrix matrix, std::vector<float> filters, const ConvShape& shape, const KernelTable& kernels);

  std::size_t columns() const { return matrix_.columns; }
  std::size_t channels() const { return matrix_.rows; }
  const ConvShape& shape() const { return depthwise_.shape(); }
  void run(const SparseDepthwiseCall& call, const Threads& threads);

 private:
  struct Pixels {
    const float* x;
    std::size_t count, pitch;  // of a channel
  };
  struct Channels {
    std::size_t image, first, end;
  };
  Pixels whole_vectors(const ConvCall& call, std::size_t image) const;
  std::size_t rows_at_once(const ConvCall& call) const;
  void widen(const SparseDepthwiseCall& call, const Pixels& pixels, std::size_t channel, std::size_t first,
             std::size_t count, float* out) const;
  void run_channels(const SparseDepthwiseCall& call, const Pixels& pixels, const Channels& channels);

  SparseMatrix matrix_;
  DepthwiseConv depthwise_;
  const KernelTable& kernels_;
};

// Returns what is invalid about a matrix and the filters behind it, or an empty string.
std::string check_sparse_depthwise(const SparseMatrix& matrix, const std::vector<float>& filters,
                                   const ConvShape& shape);

}  // namespace rigl
