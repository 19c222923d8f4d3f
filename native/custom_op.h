// The life of an operator in ONNX Runtime: create, run and destroy, written once for all kernels.
//
// A Kernel has
//   static constexpr const char* kName;
//   static constexpr std::size_t kInputs, kOutputs;
//   static ort::ElementType input_type(std::size_t index);
//   Kernel(const ort::Api&, const ort::KernelInfo*);
//   OpSettings settings;
//   void compute(ort::KernelContext*);
#pragma once

#include <cstdio>
#include <exception>
#include <limits>

#include "op_context.h"
#include "ort_api.h"

namespace rigl {

inline ort::Status* failure(const ort::Api& api, const char* name, const char* message) noexcept {
  char text[512];
  std::snprintf(text, sizeof text, "%s: %s", name, message);
  return api.create_status(ort::kInvalidArgument, text);
}

// No exception may cross the boundary to ONNX Runtime, which may be built by another compiler.
template <class Body>
ort::Status* guarded(const ort::Api& api, const char* name, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return failure(api, name, error.what());
  } catch (...) {
    return failure(api, name, "unknown error");
  }
}

// For operators whose other outputs may be left out.
inline ort::Characteristic first_required(const ort::CustomOp*, std::size_t i) {
  return i == 0 ? ort::kRequired : ort::kOptional;
}

template <class Kernel>
ort::CustomOp make_custom_op() {
  ort::CustomOp op{};
  op.version = ort::kApiVersion;
  op.get_name = [](const ort::CustomOp*) { return Kernel::kName; };
  op.get_provider = [](const ort::CustomOp*) -> const char* { return "CPUExecutionProvider"; };
  op.get_input_type = [](const ort::CustomOp*, std::size_t i) { return Kernel::input_type(i); };
  op.get_input_count = [](const ort::CustomOp*) { return Kernel::kInputs; };
  op.get_output_type = [](const ort::CustomOp*, std::size_t) { return ort::kFloat; };
  op.get_output_count = [](const ort::CustomOp*) { return Kernel::kOutputs; };
  op.get_input_characteristic = [](const ort::CustomOp*, std::size_t i) {
    return i < 2 ? ort::kRequired : ort::kOptional;
  };
  op.get_output_characteristic = [](const ort::CustomOp*, std::size_t) { return ort::kRequired; };
  op.get_input_memory = [](const ort::CustomOp*, std::size_t) { return 0; };
  op.get_variadic_input_arity = [](const ort::CustomOp*) { return 1; };
  op.get_variadic_input_homogeneity = [](const ort::CustomOp*) { return 1; };
  op.get_variadic_output_arity = [](const ort::CustomOp*) { return 1; };
  op.get_variadic_output_homogeneity = [](const ort::CustomOp*) { return 1; };
  op.create_kernel_v2 = [](const ort::CustomOp*, ort::Table table, const ort::KernelInfo* info, void** out) {
    const ort::Api api{table};
    return guarded(api, Kernel::kName, [&] { *out = new Kernel(api, info); });
  };
  op.compute_v2 = [](void* handle, ort::KernelContext* context) {
    Kernel& kernel = *static_cast<Kernel*>(handle);
    return guarded(kernel.settings.api, Kernel::kName, [&] { kernel.compute(context); });
  };
  op.destroy = [](void* handle) { delete static_cast<Kernel*>(handle); };
  op.get_start_version = [](const ort::CustomOp*) { return 1; };
  op.get_end_version = [](const ort::CustomOp*) { return std::numeric_limits<int>::max(); };
  op.get_may_inplace = [](int**, int**) { return std::size_t{0}; };
  op.release_may_inplace = [](int*, int*) {};
  op.get_alias_map = [](int**, int**) { return std::size_t{0}; };
  op.release_alias_map = [](int*, int*) {};
  return op;
}

}  // namespace rigl
