#include "op_context.h"

#include <algorithm>
#include <limits>
#include <thread>

namespace rigl {
namespace {

void check(const ort::Api& api, ort::Status* status, const char* message) {
  if (status == nullptr) return;
  api.release_status(status);
  throw KernelError(message);
}

Shape shape_of(const ort::Api& api, const ort::Value* value) {
  ort::ShapeInfo* info = nullptr;
  check(api, api.shape_info(value, &info), "cannot read the shape of an input");
  std::size_t rank = 0;
  ort::Status* status = api.rank(info, &rank);
  Shape shape(rank);
  if (status == nullptr) status = api.dimensions(info, shape.data(), rank);
  api.release_shape_info(info);
  check(api, status, "cannot read the shape of an input");
  return shape;
}

void* data_of(const ort::Api& api, const ort::Value* value) {
  void* data = nullptr;
  check(api, api.data(const_cast<ort::Value*>(value), &data), "cannot read the data of a tensor");
  return data;
}

template <class Number>
Number attribute_or(const ort::Api& api, const ort::KernelInfo* info, const char* name, Number otherwise) {
  Number value = otherwise;
  ort::Status* status = api.attribute(info, name, &value);
  if (status == nullptr) return value;
  api.release_status(status);
  return otherwise;
}

const ort::Value* weight_tensor(const ort::Api& api, const ort::KernelInfo* info, std::size_t index) {
  int is_constant = 0;
  const ort::Value* value = nullptr;
  check(api, api.constant_input(info, index, &is_constant, &value), "cannot read the weights");
  if (is_constant == 0 || value == nullptr) throw KernelError("the weights must be an initializer");
  return value;
}

}  // namespace

void require_valid(const std::string& message) {
  if (!message.empty()) throw KernelError(message);
}

std::size_t element_count(const Shape& shape) {
  std::size_t count = 1;
  for (const std::int64_t axis : shape) count *= static_cast<std::size_t>(axis);
  return count;
}

template <class Element>
Tensor<Element> input(const ort::Api& api, const ort::KernelContext* context, std::size_t index) {
  std::size_t count = 0;
  check(api, api.input_count(context, &count), "cannot count the inputs");
  const ort::Value* value = nullptr;
  if (index >= count) return {};
  check(api, api.input(context, index, &value), "cannot read an input");
  if (value == nullptr) return {};
  return {static_cast<const Element*>(data_of(api, value)), shape_of(api, value), true};
}
template Tensor<float> input(const ort::Api&, const ort::KernelContext*, std::size_t);
template Tensor<std::int32_t> input(const ort::Api&, const ort::KernelContext*, std::size_t);

float* output(const ort::Api& api, ort::KernelContext* context, const Shape& shape, std::size_t index) {
  ort::Value* value = nullptr;
  check(api, api.output(context, index, shape.data(), shape.size(), &value), "cannot allocate an output");
  return static_cast<float*>(data_of(api, value));
}

float attribute(const ort::Api& api, const ort::KernelInfo* info, const char* name, float otherwise) {
  return attribute_or(api, info, name, otherwise);
}

std::int64_t attribute(const ort::Api& api, const ort::KernelInfo* info, const char* name, std::int64_t otherwise) {
  return attribute_or(api, info, name, otherwise);
}

std::vector<std::int64_t> integers(const ort::Api& api, const ort::KernelInfo* info, const char* name) {
  std::size_t size = 0;
  check(api, api.attribute(info, name, nullptr, &size), "an attribute is missing");
  std::vector<std::int64_t> values(size);
  if (size > 0) check(api, api.attribute(info, name, values.data(), &size), "cannot read an attribute");
  return values;
}

SparseMatrix packed_weights(const ort::Api& api, const ort::KernelInfo* info) {
  const ort::Value* value = weight_tensor(api, info, 1);
  const void* bytes = data_of(api, value);
  const std::size_t size = element_count(shape_of(api, value));
  SparseMatrix matrix;
  require_valid(read_packed(bytes, size, &matrix));
  // A session keeps its constants as long as the operators that read them.
  matrix.again = [bytes, size] {
    SparseMatrix same;
    require_valid(read_packed(bytes, size, &same));
    return same;
  };
  return matrix;
}

std::vector<float> dense_weights(const ort::Api& api, const ort::KernelInfo* info, std::size_t index) {
  const ort::Value* value = weight_tensor(api, info, index);
  const auto* data = static_cast<const float*>(data_of(api, value));
  return std::vector<float>(data, data + element_count(shape_of(api, value)));
}

const float* constant_floats(const ort::Api& api, const ort::KernelInfo* info, std::size_t index, std::size_t count) {
  int is_constant = 0;
  const ort::Value* value = nullptr;
  if (ort::Status* status = api.constant_input(info, index, &is_constant, &value)) {
    api.release_status(status);  // there is no such input
    return nullptr;
  }
  if (is_constant == 0 || value == nullptr || element_count(shape_of(api, value)) != count) return nullptr;
  return static_cast<const float*>(data_of(api, value));
}

ConvShape conv_shape(const ort::Api& api, const ort::KernelInfo* info) {
  const auto kernel = integers(api, info, "kernel_shape"), strides = integers(api, info, "strides");
  const auto pads = integers(api, info, "pads"), dilations = integers(api, info, "dilations");
  const std::size_t axes = kernel.size();
  if (axes < 1 || axes > 2 || strides.size() != axes || dilations.size() != axes || pads.size() != 2 * axes) {
    throw KernelError("kernel_shape, strides, dilations and pads do not have the same number of axes");
  }
  const auto axis = [&](std::size_t a) { return Axis{kernel[a], strides[a], dilations[a], pads[a], pads[a + axes]}; };
  return axes == 1 ? ConvShape{Axis{}, axis(0)} : ConvShape{axis(0), axis(1)};
}

const float* bias_of(const Tensor<float>& bias, std::size_t rows) {
  if (bias.present && element_count(bias.shape) != rows) throw KernelError("the bias does not have one value per row");
  return bias.data;
}

void check_lengths(const Tensor<std::int32_t>& lengths, std::int64_t steps, std::int64_t batch) {
  if (lengths.shape != Shape{batch}) throw KernelError("expected one sequence length per sample");
  for (std::int64_t b = 0; b < batch; ++b) {
    if (lengths.data[b] < 0 || lengths.data[b] > steps) throw KernelError("sequence length outside [0, steps]");
  }
}

Epilogue epilogue(const ort::Api& api, const ort::KernelInfo* info, const std::string& prefix) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto number = [&](const char* name, auto otherwise) {
    return attribute(api, info, (prefix + name).c_str(), otherwise);
  };
  const std::int64_t chosen = number("activation", std::int64_t{0});
  if (chosen < 0 || chosen >= kActivations) throw KernelError("unknown activation");
  return {{number("low", -kInfinity), number("high", kInfinity)}, static_cast<Activation>(chosen)};
}

OpSettings::OpSettings(const ort::Api& api, const ort::KernelInfo* info) : api(api) {
  const Epilogue given = epilogue(api, info, "");
  clip = given.clip;
  activation = given.activation;
  const std::int64_t requested = attribute(api, info, "threads", std::int64_t{0});
  const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  threads = static_cast<int>(std::clamp<std::int64_t>(requested > 0 ? requested : cores, 1, 256));
}

void SessionThreads::run(void* pool, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  const SessionThreads& session = *static_cast<const SessionThreads*>(pool);
  check(session.api_, session.api_.parallel_for(session.context_, task, total, 0, user),
        "the thread pool of the session does not accept work");
}

}  // namespace rigl
