// Parallel loops on the caller's threads, and memory that each thread keeps between calls.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>

namespace rigl {

// Nanoseconds of work for which another thread pays off, by the costs of the kernels in use.
double work_per_thread();

struct Threads {
  int count = 1;
  void (*run)(void* pool, void (*task)(void*, std::size_t), std::size_t total, void* user) = nullptr;
  void* pool = nullptr;
  double ns_per_thread = work_per_thread();  // a thread is used for every so many nanoseconds of work
  int chunks_per_thread = 4;                 // more chunks than threads balance threads of unequal speed

  // As many of these threads as pay off for this much work.
  Threads limited_to(double nanoseconds) const {
    if (count <= 1 || nanoseconds >= ns_per_thread * count) return *this;
    return {std::max(static_cast<int>(nanoseconds / ns_per_thread), 1), run, pool, ns_per_thread, 1};
  }
};

// A parallel loop in progress. The threads belong to the caller, so no exception may leave them: the first is kept, and
// rethrown to the caller.
template <class Body>
struct ParallelLoop {
  const Body* body;
  std::size_t total, chunks;
  std::atomic<bool> failed{false};
  std::exception_ptr error{};

  static void run_chunk(void* user, std::size_t index) noexcept {
    ParallelLoop& loop = *static_cast<ParallelLoop*>(user);
    try {
      const std::size_t end = loop.total * (index + 1) / loop.chunks;
      for (std::size_t i = loop.total * index / loop.chunks; i < end; ++i) (*loop.body)(i);
    } catch (...) {
      if (!loop.failed.exchange(true)) loop.error = std::current_exception();
    }
  }
};

// Call `body(i)` for all i below `total`.
template <class Body>
void parallel_for(const Threads& threads, std::size_t total, const Body& body) {
  if (threads.count <= 1 || total <= 1 || threads.run == nullptr) {
    for (std::size_t i = 0; i < total; ++i) body(i);
    return;
  }
  const std::size_t chunks = std::min(total, static_cast<std::size_t>(threads.count * threads.chunks_per_thread));
  ParallelLoop<Body> loop{&body, total, chunks};
  threads.run(threads.pool, ParallelLoop<Body>::run_chunk, chunks, &loop);
  if (loop.failed) std::rethrow_exception(loop.error);
}

// Uninitialized memory that grows on demand, aligned to cache lines.
class Buffer {
 public:
  float* reserve(std::size_t count) {
    if (count > capacity_) {
      const std::size_t bytes = (count * sizeof(float) + 4095) / 4096 * 4096;
      void* memory = std::aligned_alloc(64, bytes);
      if (memory == nullptr) throw std::bad_alloc();
      memory_.reset(static_cast<float*>(memory));
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

// Buffers of a thread inside a parallel loop.
struct Scratch {
  Buffer activations, acc, outputs;
};
inline Scratch& scratch() {
  static thread_local Scratch buffers;
  return buffers;
}

// What the calling thread prepares for all threads of a loop.
inline Buffer& shared_input() {
  static thread_local Buffer buffer;
  return buffer;
}

}  // namespace rigl
