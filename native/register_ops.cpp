// The entry point for ONNX Runtime: called when a session registers the library.
#include <mutex>

#include "custom_op.h"
#include "export.h"
#include "ops.h"
#include "ort_api.h"

namespace {

constexpr const char* kDomain = "rigl_compress";

// Sessions do not own the domain: one serves them all, for the lifetime of the process.
ort::Status* add_domain(ort::SessionOptions* options, const ort::Api& api) {
  static const ort::CustomOp ops[] = {rigl::conv_op(),     rigl::matmul_op(),           rigl::gru_op(),
                                      rigl::lstm_op(),     rigl::depthwise_op(),        rigl::layer_norm_op(),
                                      rigl::rnn_op(),      rigl::sparse_depthwise_op(), rigl::spread_op(),
                                      rigl::attention_op()};
  static std::mutex mutex;
  static ort::CustomOpDomain* shared = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (shared == nullptr) {
    ort::CustomOpDomain* domain = nullptr;
    if (ort::Status* status = api.create_domain(kDomain, &domain)) return status;
    for (const ort::CustomOp& op : ops) {
      if (ort::Status* status = api.add_op(domain, &op)) return status;
    }
    shared = domain;
  }
  return api.add_domain(options, shared);
}

}  // namespace

RIGL_EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) noexcept {
  const ort::Table table = base->get_api(ort::kApiVersion);
  if (table == nullptr) {
    // Every version has the entries of version 1, and a status is the same in all of them.
    return ort::Api{base->get_api(1)}.create_status(ort::kFail, "rigl_compress needs ONNX Runtime 1.18 or newer");
  }
  const ort::Api api{table};
  ort::Status* status = nullptr;
  ort::Status* failed = rigl::guarded(api, kDomain, [&] { status = add_domain(options, api); });
  return failed != nullptr ? failed : status;
}
