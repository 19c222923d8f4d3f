// The entries of ONNX Runtime's C API that the operators use. Declared here because no package ships the header. The
// API is an append-only table: an entry keeps its index, and a runtime supports every version up to its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

// 1.18 is the oldest supported runtime, and has every entry used here.
constexpr std::uint32_t kApiVersion = 18;

struct Status;
struct Value;
struct ShapeInfo;
struct KernelInfo;
struct KernelContext;
struct SessionOptions;
struct CustomOpDomain;
struct ShapeContext;

enum ElementType : int { kFloat = 1, kUint8 = 2, kInt32 = 6 };
enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };
enum Characteristic : int { kRequired = 0, kOptional = 1 };

using Table = const void* const*;

struct ApiBase {
  Table (*get_api)(std::uint32_t version);
  const char* (*get_version)();
};

// The description of an operator. The runtime reads the fields of the version that the first field names.
struct CustomOp {
  std::uint32_t version;
  void* (*create_kernel)(const CustomOp*, Table, const KernelInfo*);
  const char* (*get_name)(const CustomOp*);
  const char* (*get_provider)(const CustomOp*);
  ElementType (*get_input_type)(const CustomOp*, std::size_t);
  std::size_t (*get_input_count)(const CustomOp*);
  ElementType (*get_output_type)(const CustomOp*, std::size_t);
  std::size_t (*get_output_count)(const CustomOp*);
  void (*compute)(void*, KernelContext*);
  void (*destroy)(void*);
  Characteristic (*get_input_characteristic)(const CustomOp*, std::size_t);
  Characteristic (*get_output_characteristic)(const CustomOp*, std::size_t);
  int (*get_input_memory)(const CustomOp*, std::size_t);
  int (*get_variadic_input_arity)(const CustomOp*);
  int (*get_variadic_input_homogeneity)(const CustomOp*);
  int (*get_variadic_output_arity)(const CustomOp*);
  int (*get_variadic_output_homogeneity)(const CustomOp*);
  Status* (*create_kernel_v2)(const CustomOp*, Table, const KernelInfo*, void**);
  Status* (*compute_v2)(void*, KernelContext*);
  Status* (*infer_shape)(const CustomOp*, ShapeContext*);
  int (*get_start_version)(const CustomOp*);
  int (*get_end_version)(const CustomOp*);
  std::size_t (*get_may_inplace)(int**, int**);
  void (*release_may_inplace)(int*, int*);
  std::size_t (*get_alias_map)(int**, int**);
  void (*release_alias_map)(int*, int*);
};
static_assert(sizeof(void*) != 8 || sizeof(CustomOp) == 208, "the layout of OrtCustomOp");

// Typed access to the table by index.
struct Api {
  Table table;

  template <int kIndex, class Result, class... Arguments>
  Result call(Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(table[kIndex])(arguments...);
  }

  Status* create_status(ErrorCode code, const char* message) const {
    return call<0, Status*>(static_cast<int>(code), message);
  }
  void release_status(Status* status) const { call<93, void>(status); }
  Status* create_domain(const char* name, CustomOpDomain** out) const { return call<26, Status*>(name, out); }
  Status* add_op(CustomOpDomain* domain, const CustomOp* op) const { return call<27, Status*>(domain, op); }
  Status* add_domain(SessionOptions* options, CustomOpDomain* domain) const {
    return call<28, Status*>(options, domain);
  }
  Status* attribute(const KernelInfo* info, const char* name, float* out) const {
    return call<85, Status*>(info, name, out);
  }
  Status* attribute(const KernelInfo* info, const char* name, std::int64_t* out) const {
    return call<86, Status*>(info, name, out);
  }
  Status* attribute(const KernelInfo* info, const char* name, std::int64_t* out, std::size_t* size) const {
    return call<163, Status*>(info, name, out, size);
  }
  Status* constant_input(const KernelInfo* info, std::size_t index, int* is_constant, const Value** out) const {
    return call<249, Status*>(info, index, is_constant, out);
  }
  Status* input_count(const KernelContext* context, std::size_t* out) const { return call<88, Status*>(context, out); }
  Status* input(const KernelContext* context, std::size_t index, const Value** out) const {
    return call<90, Status*>(context, index, out);
  }
  Status* output(KernelContext* context, std::size_t index, const std::int64_t* shape, std::size_t rank,
                 Value** out) const {
    return call<91, Status*>(context, index, shape, rank, out);
  }
  Status* parallel_for(const KernelContext* context, void (*task)(void*, std::size_t), std::size_t total,
                       std::size_t batches, void* user) const {
    return call<274, Status*>(context, task, total, batches, user);
  }
  Status* shape_info(const Value* value, ShapeInfo** out) const { return call<65, Status*>(value, out); }
  Status* rank(const ShapeInfo* info, std::size_t* out) const { return call<61, Status*>(info, out); }
  Status* dimensions(const ShapeInfo* info, std::int64_t* out, std::size_t rank) const {
    return call<62, Status*>(info, out, rank);
  }
  void release_shape_info(ShapeInfo* info) const { call<99, void>(info); }
  Status* data(Value* value, void** out) const { return call<51, Status*>(value, out); }
};

}  // namespace ort
