// What the operators share: access to tensors and attributes of ONNX Runtime, errors, and its thread pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "conv.h"
#include "kernels.h"
#include "ort_api.h"
#include "packed.h"
#include "threads.h"

namespace rigl {

// Becomes the status of the operator, and with it the message of the exception in Python.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws a KernelError if the message is not empty.
void require_valid(const std::string& message);

using Shape = std::vector<std::int64_t>;
std::size_t element_count(const Shape& shape);

// An input. One that is present may have no data: it is empty.
template <class Element>
struct Tensor {
  const Element* data = nullptr;
  Shape shape;
  bool present = false;
};

template <class Element>
Tensor<Element> input(const ort::Api& api, const ort::KernelContext* context, std::size_t index);
extern template Tensor<float> input(const ort::Api&, const ort::KernelContext*, std::size_t);
extern template Tensor<std::int32_t> input(const ort::Api&, const ort::KernelContext*, std::size_t);

float* output(const ort::Api& api, ort::KernelContext* context, const Shape& shape, std::size_t index = 0);

// The value of an attribute, or `otherwise` where it is absent.
float attribute(const ort::Api& api, const ort::KernelInfo* info, const char* name, float otherwise);
std::int64_t attribute(const ort::Api& api, const ort::KernelInfo* info, const char* name, std::int64_t otherwise);
std::vector<std::int64_t> integers(const ort::Api& api, const ort::KernelInfo* info, const char* name);

// The weights, input 1 unless said otherwise: a packed matrix, or plain floats.
SparseMatrix packed_weights(const ort::Api& api, const ort::KernelInfo* info);
std::vector<float> dense_weights(const ort::Api& api, const ort::KernelInfo* info, std::size_t index = 1);

// The data of a constant input with so many elements, which a session keeps as long as the operators that read it; null
// where there is none: it is read in each call then.
const float* constant_floats(const ort::Api& api, const ort::KernelInfo* info, std::size_t index, std::size_t count);

// The attributes of a convolution, which must be of one or two axes.
ConvShape conv_shape(const ort::Api& api, const ort::KernelInfo* info);

// The bias of an operator with this many output rows, or null.
const float* bias_of(const Tensor<float>& bias, std::size_t rows);

// Throws if there is not one sequence length in [0, steps] per sample.
void check_lengths(const Tensor<std::int32_t>& lengths, std::int64_t steps, std::int64_t batch);

// What is applied to an output, by the attributes with a prefix.
struct Epilogue {
  Clip clip;
  Activation activation;
};
Epilogue epilogue(const ort::Api& api, const ort::KernelInfo* info, const std::string& prefix);

// The attributes that all operators have: the limits of the output, its activation, and the number of threads.
struct OpSettings {
  ort::Api api;
  Clip clip;
  Activation activation;
  int threads;

  OpSettings(const ort::Api& api, const ort::KernelInfo* info);
};

// The threads of the session during one call of an operator.
class SessionThreads {
 public:
  SessionThreads(const OpSettings& settings, const ort::KernelContext* context)
      : api_(settings.api), context_(context), count_(settings.threads) {}

  Threads threads() { return {count_, run, this}; }

 private:
  static void run(void* pool, void (*task)(void*, std::size_t), std::size_t total, void* user);

  const ort::Api& api_;
  const ort::KernelContext* context_;
  int count_;
};

}  // namespace rigl
