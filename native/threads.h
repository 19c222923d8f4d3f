// Work for the threads of whoever calls, and memory that each thread keeps from one call to the next.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>

namespace rigl {

// To call in another thread, to wait for it, and to move what it reads into its caches costs about as much as so many
// nanoseconds of work. Measured with networks of small layers in ONNX Runtime's pool.
constexpr double kLeastShare = 30e3;

struct Threads {
  int count = 1;
  void (*run)(void* pool, void (*task)(void*, std::size_t), std::size_t total, void* user) = nullptr;
  void* pool = nullptr;
  double least_share = kLeastShare;  // nanoseconds of work for which a thread is called in
  int pieces_each = 4;               // a few more pieces than threads, so that a slow one is not waited for

  // As many of these threads as a piece of work keeps busy.
  Threads for_work(double nanoseconds) const {
    if (count <= 1 || nanoseconds >= least_share * count) return *this;
    return {std::max(static_cast<int>(nanoseconds / least_share), 1), run, pool, least_share, 1};
  }
};

// Call `body(i)` for all i below `total`.
template <class Body>
void for_each(const Threads& threads, std::size_t total, const Body& body) {
  if (threads.count <= 1 || total <= 1 || threads.run == nullptr) {
    for (std::size_t i = 0; i < total; ++i) body(i);
    return;
  }
  struct Call {
    const Body* body;
    std::size_t total, pieces;
    std::atomic<bool> failed;
  };
  Call call = {&body, total, std::min(total, static_cast<std::size_t>(threads.count * threads.pieces_each)), {false}};
  const auto piece = [](void* user, std::size_t index) {
    Call& one = *static_cast<Call*>(user);
    const std::size_t end = one.total * (index + 1) / one.pieces;
    try {
      for (std::size_t i = one.total * index / one.pieces; i < end; ++i) (*one.body)(i);
    } catch (const std::exception&) {
      one.failed = true;  // no exception may leave a thread that is not ours
    }
  };
  threads.run(threads.pool, piece, call.pieces, &call);
  if (call.failed) throw std::bad_alloc();
}

// Memory that grows and is not set to anything; aligned to cache lines.
class Buffer {
 public:
  float* floats(std::size_t count) {
    if (count > capacity_) {
      const std::size_t bytes = (count * sizeof(float) + 4095) / 4096 * 4096;
      void* fresh = std::aligned_alloc(64, bytes);
      if (fresh == nullptr) throw std::bad_alloc();
      memory_.reset(static_cast<float*>(fresh));
      capacity_ = bytes / sizeof(float);
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
  std::size_t capacity_ = 0;
};

// What a thread works with inside a piece of work, and what the caller prepares for all of them.
struct Scratch {
  Buffer activations, sums, outputs;
};
inline Scratch& scratch() {
  static thread_local Scratch mine;
  return mine;
}
inline Buffer& prepared() {
  static thread_local Buffer mine;
  return mine;
}

}  // namespace rigl
