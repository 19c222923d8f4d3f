// The kernels for callers without ONNX Runtime: tests, benchmarks, other languages.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "conv.h"
#include "cpu.h"
#include "depthwise.h"
#include "gru.h"
#include "matmul.h"

#if defined(_WIN32)
#define RIGL_EXPORT extern "C" __declspec(dllexport)
#else
#define RIGL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

using namespace rigl;

// Without a pool of threads the pieces run one after the other, but they are cut as for so many threads, however small.
void run_in_turn(void*, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  for (std::size_t i = 0; i < total; ++i) task(user, i);
}

Threads in_turn(int count) { return {count, run_in_turn, nullptr, 0.0}; }

void tell(const std::string& message, char* error, std::size_t room) {
  if (room == 0) return;
  const std::size_t length = std::min(message.size(), room - 1);
  std::memcpy(error, message.data(), length);
  error[length] = 0;
}

const KernelTable* wanted(const char* name) { return *name == 0 ? &kernels() : kernels_named(name); }

}  // namespace

// Counts up when operators or these functions change; OPERATORS_VERSION in runtime/library.py is the same number.
RIGL_EXPORT int rigl_operators_version() { return 2; }
RIGL_EXPORT const char* rigl_kernels_name() { return kernels().name; }
RIGL_EXPORT int rigl_has_kernels(const char* name) { return kernels_named(name) != nullptr; }

// Give what is wrong with packed weights: nothing if all is well.
RIGL_EXPORT void rigl_check_packed(const void* bytes, std::size_t size, char* error, std::size_t room) {
  SparseMatrix matrix;
  tell(read_packed(bytes, size, &matrix), error, room);
}

RIGL_EXPORT void* rigl_matmul_create(const void* bytes, std::size_t size, const char* kernels_name) {
  SparseMatrix matrix;
  const KernelTable* table = wanted(kernels_name);
  if (table == nullptr || !read_packed(bytes, size, &matrix).empty()) return nullptr;
  return new (std::nothrow) SparseMatMul(std::move(matrix), *table);
}

RIGL_EXPORT void rigl_matmul_run(void* handle, const MatMulCall* call, int threads) {
  static_cast<SparseMatMul*>(handle)->run(*call, in_turn(threads));
}

RIGL_EXPORT void rigl_matmul_destroy(void* handle) { delete static_cast<SparseMatMul*>(handle); }

RIGL_EXPORT void* rigl_conv_create(const void* bytes, std::size_t size, const ConvShape* shape,
                                   const char* kernels_name) {
  SparseMatrix matrix;
  const KernelTable* table = wanted(kernels_name);
  if (table == nullptr || !read_packed(bytes, size, &matrix).empty()) return nullptr;
  if (!check_conv(matrix, *shape).empty()) return nullptr;
  return new (std::nothrow) SparseConv(std::move(matrix), *shape, *table);
}

RIGL_EXPORT void rigl_conv_run(void* handle, const ConvCall* call, int threads) {
  static_cast<SparseConv*>(handle)->run(*call, in_turn(threads));
}

RIGL_EXPORT void rigl_conv_destroy(void* handle) { delete static_cast<SparseConv*>(handle); }

RIGL_EXPORT void* rigl_depthwise_create(const float* weights, std::size_t count, const ConvShape* shape,
                                        const char* kernels_name) {
  std::vector<float> filters(weights, weights + count);
  const KernelTable* table = wanted(kernels_name);
  if (table == nullptr || !check_depthwise(filters, *shape).empty()) return nullptr;
  return new (std::nothrow) DepthwiseConv(std::move(filters), *shape, *table);
}

RIGL_EXPORT void rigl_depthwise_run(void* handle, const ConvCall* call, int threads) {
  static_cast<DepthwiseConv*>(handle)->run(*call, in_turn(threads));
}

RIGL_EXPORT void rigl_depthwise_destroy(void* handle) { delete static_cast<DepthwiseConv*>(handle); }

RIGL_EXPORT void* rigl_gru_create(const void* bytes, std::size_t size, const GruShape* shape,
                                  const char* kernels_name) {
  SparseMatrix matrix;
  const KernelTable* table = wanted(kernels_name);
  if (table == nullptr || !read_packed(bytes, size, &matrix).empty()) return nullptr;
  if (!check_gru(matrix, *shape).empty()) return nullptr;
  return new (std::nothrow) SparseGru(matrix, *shape, *table);
}

RIGL_EXPORT void rigl_gru_run(void* handle, const GruCall* call, int threads) {
  static_cast<SparseGru*>(handle)->run(*call, in_turn(threads));
}

RIGL_EXPORT void rigl_gru_destroy(void* handle) { delete static_cast<SparseGru*>(handle); }
