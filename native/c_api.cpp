// The kernels for callers without ONNX Runtime: tests, benchmarks, other languages. No function lets an exception out:
// those that can fail copy the message of the error, cut off after `room` bytes.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention.h"
#include "conv.h"
#include "cpu.h"
#include "depthwise.h"
#include "export.h"
#include "gru.h"
#include "layer_norm.h"
#include "lstm.h"
#include "matmul.h"
#include "sparse_depthwise.h"

namespace {

using namespace rigl;

#if defined(__LP64__)
// runtime/kernels.py declares these structs for ctypes.
static_assert(sizeof(Clip) == 8 && offsetof(Clip, low) == 0 && offsetof(Clip, high) == 4, "see runtime/kernels.py");
static_assert(sizeof(MatMulCall) == 48 && offsetof(MatMulCall, x) == 0 && offsetof(MatMulCall, batch) == 8 &&
                  offsetof(MatMulCall, bias) == 16 && offsetof(MatMulCall, y) == 24 &&
                  offsetof(MatMulCall, x_by_column) == 32 && offsetof(MatMulCall, y_by_column) == 33 &&
                  offsetof(MatMulCall, clip) == 36 && offsetof(MatMulCall, activation) == 44,
              "see runtime/kernels.py");
static_assert(sizeof(Axis) == 40 && offsetof(Axis, kernel) == 0 && offsetof(Axis, stride) == 8 &&
                  offsetof(Axis, dilation) == 16 && offsetof(Axis, pad_begin) == 24 && offsetof(Axis, pad_end) == 32,
              "see runtime/kernels.py");
static_assert(sizeof(ConvShape) == 80 && offsetof(ConvShape, rows) == 0 && offsetof(ConvShape, columns) == 40,
              "see runtime/kernels.py");
static_assert(sizeof(ConvCall) == 80 && offsetof(ConvCall, scale) == 72 && offsetof(ConvCall, x) == 0 &&
                  offsetof(ConvCall, batch) == 8 && offsetof(ConvCall, height) == 16 &&
                  offsetof(ConvCall, width) == 24 && offsetof(ConvCall, bias) == 32 &&
                  offsetof(ConvCall, residual) == 40 && offsetof(ConvCall, y) == 48 && offsetof(ConvCall, clip) == 56 &&
                  offsetof(ConvCall, activation) == 64,
              "see runtime/kernels.py");
static_assert(sizeof(SparseDepthwiseCall) == 112 && offsetof(SparseDepthwiseCall, inner_bias) == 80 &&
                  offsetof(SparseDepthwiseCall, inner_clip) == 88 &&
                  offsetof(SparseDepthwiseCall, inner_activation) == 96 && offsetof(SparseDepthwiseCall, means) == 104,
              "see runtime/sparse_depthwise_kernel.py");
static_assert(sizeof(LayerNormCall) == 72 && offsetof(LayerNormCall, x_by_column) == 68 &&
                  offsetof(LayerNormCall, residual_by_column) == 69 && offsetof(LayerNormCall, y_by_column) == 70 &&
                  offsetof(LayerNormCall, sum_by_column) == 71 && offsetof(LayerNormCall, x) == 0 &&
                  offsetof(LayerNormCall, residual) == 8 && offsetof(LayerNormCall, scale) == 16 &&
                  offsetof(LayerNormCall, bias) == 24 && offsetof(LayerNormCall, y) == 32 &&
                  offsetof(LayerNormCall, sum) == 40 && offsetof(LayerNormCall, rows) == 48 &&
                  offsetof(LayerNormCall, size) == 56 && offsetof(LayerNormCall, epsilon) == 64,
              "see runtime/kernels.py");
static_assert(sizeof(LstmShape) == 20 && offsetof(LstmShape, directions) == 0 && offsetof(LstmShape, backward) == 4 &&
                  offsetof(LstmShape, gates) == 12 && offsetof(LstmShape, activation) == 16,
              "see runtime/lstm_kernel.py");
static_assert(sizeof(LstmCall) == 72 && offsetof(LstmCall, x) == 0 && offsetof(LstmCall, steps) == 8 &&
                  offsetof(LstmCall, batch) == 16 && offsetof(LstmCall, initial) == 24 &&
                  offsetof(LstmCall, initial_cell) == 32 && offsetof(LstmCall, lengths) == 40 &&
                  offsetof(LstmCall, y) == 48 && offsetof(LstmCall, last) == 56 && offsetof(LstmCall, last_cell) == 64,
              "see runtime/lstm_kernel.py");
static_assert(sizeof(GruShape) == 16 && offsetof(GruShape, directions) == 0 && offsetof(GruShape, backward) == 4 &&
                  offsetof(GruShape, reset_after) == 12,
              "see runtime/kernels.py");
static_assert(sizeof(GruCall) == 64 && offsetof(GruCall, x) == 0 && offsetof(GruCall, steps) == 8 &&
                  offsetof(GruCall, batch) == 16 && offsetof(GruCall, bias) == 24 && offsetof(GruCall, initial) == 32 &&
                  offsetof(GruCall, lengths) == 40 && offsetof(GruCall, y) == 48 && offsetof(GruCall, last) == 56,
              "see runtime/kernels.py");
static_assert(sizeof(AttentionInput) == 32 && sizeof(AttentionMask) == 40, "see runtime/attention_kernel.py");
static_assert(sizeof(AttentionCall) == 208 && offsetof(AttentionCall, q) == 0 && offsetof(AttentionCall, k) == 32 &&
                  offsetof(AttentionCall, v) == 64 && offsetof(AttentionCall, mask) == 96 &&
                  offsetof(AttentionCall, y) == 136 && offsetof(AttentionCall, y_by_column) == 144 &&
                  offsetof(AttentionCall, batch) == 152 && offsetof(AttentionCall, heads) == 160 &&
                  offsetof(AttentionCall, queries) == 168 && offsetof(AttentionCall, keys) == 176 &&
                  offsetof(AttentionCall, size) == 184 && offsetof(AttentionCall, v_size) == 192 &&
                  offsetof(AttentionCall, scale) == 200,
              "see runtime/attention_kernel.py");
#endif

// Where the message of an error goes.
struct ErrorText {
  char* text;
  std::size_t room;
};

void copy_message(const char* message, const ErrorText& error) noexcept {
  if (error.room == 0) return;
  const std::size_t length = std::min(std::strlen(message), error.room - 1);
  std::memcpy(error.text, message, length);
  error.text[length] = 0;
}

// Run `body`; returns 0, or 1 with the message of what it threw.
template <class Body>
int guarded(const ErrorText& error, const Body& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& thrown) {
    copy_message(thrown.what(), error);
  } catch (...) {
    copy_message("unknown error", error);
  }
  return 1;
}

void require_valid(const std::string& message) {
  if (!message.empty()) throw std::invalid_argument(message);
}

SparseMatrix read_matrix(const void* bytes, std::size_t size) {
  SparseMatrix matrix;
  require_valid(read_packed(bytes, size, &matrix));
  return matrix;
}

const KernelTable& requested_kernels(const char* name) {
  const KernelTable* table = *name == 0 ? &kernels() : find_kernels(name);
  if (table == nullptr) throw std::invalid_argument(std::string("no kernels '") + name + "' on this machine");
  return *table;
}

// Without a thread pool the chunks run one after the other, but are the same as for this many threads, however small.
void run_serially(void*, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  for (std::size_t i = 0; i < total; ++i) task(user, i);
}

Threads serial_threads(int count) { return {count, run_serially, nullptr, 0.0}; }

// The life of a kernel: `make` returns a new one.
template <class Make>
void* create(const ErrorText& error, const Make& make) noexcept {
  void* handle = nullptr;
  guarded(error, [&] { handle = make(); });
  return handle;
}

template <class Kernel, class Call>
int run(void* handle, const Call* call, int threads, const ErrorText& error) noexcept {
  return guarded(error, [&] { static_cast<Kernel*>(handle)->run(*call, serial_threads(threads)); });
}

template <class Kernel>
void destroy(void* handle) noexcept {
  delete static_cast<Kernel*>(handle);
}

}  // namespace

// Counts changes of the operators and of these functions; the same as OPERATORS_VERSION in runtime/kernel_library.py.
RIGL_EXPORT int rigl_operators_version() { return 6; }
RIGL_EXPORT const char* rigl_kernels_name() { return kernels().name; }
RIGL_EXPORT int rigl_has_kernels(const char* name) {
  int found = 0;
  guarded({nullptr, 0}, [&] { found = find_kernels(name) != nullptr; });
  return found;
}

// For calibration: nanoseconds of work for which another thread is used; negative for those of the costs.
RIGL_EXPORT void rigl_set_work_per_thread(double nanoseconds) { set_work_per_thread(nanoseconds); }

RIGL_EXPORT int rigl_check_packed(const void* bytes, std::size_t size, char* error, std::size_t room) {
  return guarded({error, room}, [&] { read_matrix(bytes, size); });
}

// The columns of a tile, in values of so many columns.
RIGL_EXPORT int rigl_tile_width(const char* kernels_name, std::size_t columns) {
  int width = 0;
  guarded({nullptr, 0}, [&] { width = tile_width(columns, requested_kernels(kernels_name).lanes); });
  return width;
}

RIGL_EXPORT int rigl_attention_run(const AttentionCall* call, const char* kernels_name, int threads, char* error,
                                   std::size_t room) {
  return guarded({error, room},
                 [&] { run_attention(*call, requested_kernels(kernels_name), serial_threads(threads)); });
}

RIGL_EXPORT void* rigl_matmul_create(const void* bytes, std::size_t size, const char* kernels_name, char* error,
                                     std::size_t room) {
  return create({error, room},
                [&] { return new SparseMatMul(read_matrix(bytes, size), requested_kernels(kernels_name)); });
}
RIGL_EXPORT int rigl_matmul_run(void* handle, const MatMulCall* call, int threads, char* error, std::size_t room) {
  return run<SparseMatMul>(handle, call, threads, {error, room});
}
RIGL_EXPORT void rigl_matmul_destroy(void* handle) { destroy<SparseMatMul>(handle); }

RIGL_EXPORT void* rigl_conv_create(const void* bytes, std::size_t size, const ConvShape* shape,
                                   const char* kernels_name, char* error, std::size_t room) {
  return create({error, room}, [&] {
    SparseMatrix matrix = read_matrix(bytes, size);
    require_valid(check_conv(matrix, *shape));
    return new SparseConv(std::move(matrix), *shape, requested_kernels(kernels_name));
  });
}
RIGL_EXPORT int rigl_conv_run(void* handle, const ConvCall* call, int threads, char* error, std::size_t room) {
  return run<SparseConv>(handle, call, threads, {error, room});
}
RIGL_EXPORT void rigl_conv_destroy(void* handle) { destroy<SparseConv>(handle); }

RIGL_EXPORT void* rigl_depthwise_create(const float* weights, std::size_t count, const ConvShape* shape,
                                        const char* kernels_name, char* error, std::size_t room) {
  return create({error, room}, [&] {
    std::vector<float> filters(weights, weights + count);
    require_valid(check_depthwise(filters, *shape));
    return new DepthwiseConv(std::move(filters), *shape, requested_kernels(kernels_name));
  });
}
RIGL_EXPORT int rigl_depthwise_run(void* handle, const ConvCall* call, int threads, char* error, std::size_t room) {
  return run<DepthwiseConv>(handle, call, threads, {error, room});
}
RIGL_EXPORT void rigl_depthwise_destroy(void* handle) { destroy<DepthwiseConv>(handle); }

RIGL_EXPORT void* rigl_sparse_depthwise_create(const void* bytes, std::size_t size, const float* filters,
                                               const ConvShape* shape, const char* kernels_name, char* error,
                                               std::size_t room) {
  return create({error, room}, [&] {
    SparseMatrix matrix = read_matrix(bytes, size);
    std::vector<float> kept(filters, filters + matrix.rows * static_cast<std::size_t>(shape->taps()));
    require_valid(check_sparse_depthwise(matrix, kept, *shape));
    return new SparseDepthwise(std::move(matrix), std::move(kept), *shape, requested_kernels(kernels_name));
  });
}
RIGL_EXPORT int rigl_sparse_depthwise_run(void* handle, const SparseDepthwiseCall* call, int threads, char* error,
                                          std::size_t room) {
  return run<SparseDepthwise>(handle, call, threads, {error, room});
}
RIGL_EXPORT void rigl_sparse_depthwise_destroy(void* handle) { destroy<SparseDepthwise>(handle); }

RIGL_EXPORT void* rigl_gru_create(const void* bytes, std::size_t size, const GruShape* shape, const char* kernels_name,
                                  char* error, std::size_t room) {
  return create({error, room}, [&] {
    const SparseMatrix matrix = read_matrix(bytes, size);
    require_valid(check_gru(matrix, *shape));
    return new SparseGru(matrix, *shape, requested_kernels(kernels_name));
  });
}
RIGL_EXPORT int rigl_gru_run(void* handle, const GruCall* call, int threads, char* error, std::size_t room) {
  return run<SparseGru>(handle, call, threads, {error, room});
}
RIGL_EXPORT void rigl_gru_destroy(void* handle) { destroy<SparseGru>(handle); }

RIGL_EXPORT int rigl_layer_norm_run(const LayerNormCall* call, const char* kernels_name, int threads, char* error,
                                    std::size_t room) {
  return guarded({error, room},
                 [&] { normalize_rows(*call, requested_kernels(kernels_name), serial_threads(threads)); });
}

RIGL_EXPORT void* rigl_lstm_create(const void* bytes, std::size_t size, const LstmShape* shape,
                                   const char* kernels_name, char* error, std::size_t room) {
  return create({error, room}, [&] {
    const SparseMatrix matrix = read_matrix(bytes, size);
    require_valid(check_lstm(matrix, *shape));
    return new SparseLstm(matrix, *shape, requested_kernels(kernels_name));
  });
}
RIGL_EXPORT int rigl_lstm_run(void* handle, const LstmCall* call, int threads, char* error, std::size_t room) {
  return run<SparseLstm>(handle, call, threads, {error, room});
}
RIGL_EXPORT void rigl_lstm_destroy(void* handle) { destroy<SparseLstm>(handle); }
