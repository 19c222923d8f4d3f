// Sparse layers in training for callers of C: Python's ctypes. As in c_api.cpp, no function lets an exception out.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu.h"
#include "export.h"
#include "huge_pages.h"
#include "train_growth.h"
#include "train_layer.h"
#include "train_mask.h"
#include "train_norm.h"
#include "train_run.h"

namespace {

using namespace rigl;

#if defined(__LP64__)
// models/training_kernels.py declares these structs for ctypes.
static_assert(sizeof(TrainShape) == 96 && sizeof(TrainCall) == 80 && sizeof(NormCall) == 104,
              "see models/training_kernels.py");
static_assert(sizeof(RunStage) == 88 && sizeof(RunCall) == 48, "see models/run_kernels.py");
static_assert(sizeof(MaskedTensor) == 24, "see models/mask_kernels.py");
#endif

// Threads live for one call: sparse layers that are worth several threads take far longer than starting them.
void run_in_threads(void* pool, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  const std::size_t count = std::min(total, *static_cast<const std::size_t*>(pool));
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < total; i = next++) task(user, i);
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < count; ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::exception&) {
      break;  // the calling thread does what is left
    }
  }
  work();
  for (std::thread& each : others) each.join();
}

void copy_message(const char* message, char* error, std::size_t room) noexcept {
  if (room == 0) return;
  const std::size_t length = std::min(std::strlen(message), room - 1);
  std::memcpy(error, message, length);
  error[length] = 0;
}

template <class Body>
int guarded(char* error, std::size_t room, const Body& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& thrown) {
    copy_message(thrown.what(), error, room);
  } catch (...) {
    copy_message("unknown error", error, room);
  }
  return 1;
}

const KernelTable& named_kernels(const char* name) {
  const KernelTable* table = *name == 0 ? &kernels() : find_kernels(name);
  if (table == nullptr) throw std::invalid_argument(std::string("no kernels '") + name + "' on this machine");
  return *table;
}

template <class Body>
int with_threads(int threads, char* error, std::size_t room, const Body& body) noexcept {
  return guarded(error, room, [&] {
    std::size_t count = static_cast<std::size_t>(std::max(threads, 1));
    body(Threads{static_cast<int>(count), run_in_threads, &count});
  });
}

int run(void* handle, const TrainCall* call, int threads, char* error, std::size_t room,
        void (TrainLayer::*step)(const TrainCall&, const Threads&)) noexcept {
  return with_threads(threads, error, room,
                      [&](const Threads& used) { (static_cast<TrainLayer*>(handle)->*step)(*call, used); });
}

}  // namespace

RIGL_EXPORT int rigl_train_version() { return 3; }

RIGL_EXPORT void* rigl_train_create(const TrainShape* shape, const std::int64_t* positions, std::size_t count,
                                    const char* kernels_name, char* error, std::size_t room) {
  void* handle = nullptr;
  guarded(error, room, [&] {
    if (const char* wrong = check_train(*shape, positions, count)) throw std::invalid_argument(wrong);
    handle = make_train_layer(*shape, positions, count, named_kernels(kernels_name)).release();
  });
  return handle;
}

RIGL_EXPORT void rigl_train_order(const void* handle, std::int64_t* order) {
  const std::vector<std::uint32_t>& found = static_cast<const TrainLayer*>(handle)->order();
  std::copy(found.begin(), found.end(), order);
}

RIGL_EXPORT int rigl_train_forward(void* handle, const TrainCall* call, int threads, char* error, std::size_t room) {
  return run(handle, call, threads, error, room, &TrainLayer::forward);
}

RIGL_EXPORT int rigl_train_backward(void* handle, const TrainCall* call, int threads, char* error, std::size_t room) {
  return run(handle, call, threads, error, room, &TrainLayer::backward);
}

// Runs of linear layers.
RIGL_EXPORT int rigl_train_run_forward(const RunCall* call, int threads, char* error, std::size_t room) {
  return with_threads(threads, error, room, [&](const Threads& used) { run_forward(*call, used); });
}

RIGL_EXPORT int rigl_train_run_backward(const RunCall* call, int threads, char* error, std::size_t room) {
  return with_threads(threads, error, room, [&](const Threads& used) { run_backward(*call, used); });
}

RIGL_EXPORT void rigl_train_destroy(void* handle) { delete static_cast<TrainLayer*>(handle); }

// `kernels_name` as in rigl_train_create.
RIGL_EXPORT int rigl_train_norm(const NormCall* call, int backward, const char* kernels_name, int threads, char* error,
                                std::size_t room) {
  return guarded(error, room, [&] {
    std::size_t count = static_cast<std::size_t>(std::max(threads, 1));
    const Threads used = {static_cast<int>(count), run_in_threads, &count};
    (backward ? norm_backward : norm_forward)(train_kernels(named_kernels(kernels_name)), *call, used);
  });
}

RIGL_EXPORT int rigl_train_mask(const MaskedTensor* tensors, std::size_t count, const char* kernels_name, int threads,
                                char* error, std::size_t room) {
  return with_threads(threads, error, room, [&](const Threads& used) {
    mask_tensors(train_kernels(named_kernels(kernels_name)), tensors, count, used);
  });
}

// Memory that is about to be written.
RIGL_EXPORT void rigl_train_advise(float* memory, std::size_t count) { prefer_huge_pages(memory, count); }

// to[c][r] = from[r][c]
RIGL_EXPORT void rigl_train_transpose(const float* from, std::size_t rows, std::size_t columns, float* to) {
  prefer_huge_pages(to, rows * columns);
  kernels().transpose(from, columns, rows, columns, to, rows);
}

// Returns how many candidates there are; `status` gets 1 if the block is finite, and 2 if it has any value but zero.
RIGL_EXPORT std::size_t rigl_train_candidates(const GrowthBlock* block, const GrowthCandidates* candidates,
                                              int* status) {
  const GrowthResult result = find_candidates(*block, *candidates);
  *status = (result.finite ? 1 : 0) + (result.nonzero ? 2 : 0);
  return result.count;
}

RIGL_EXPORT float rigl_train_bound(const GrowthBlock* block, std::size_t wanted) {
  try {
    return growth_bound(*block, wanted);
  } catch (...) {
    return -1;  // no memory for it: everything is a candidate
  }
}

RIGL_EXPORT void rigl_train_match(const std::int64_t* before, std::size_t before_count, const std::int64_t* now,
                                  std::size_t now_count, std::int64_t* index) {
  match_positions(before, before_count, now, now_count, index);
}
