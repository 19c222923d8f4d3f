// Parallel loops in a pool of real threads, which cannot handle exceptions. The first line of the output is what a loop
// throws to its caller, the second how many tasks a product of a vector has with 1, 4 and 2 threads.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu.h"
#include "matmul.h"
#include "threads.h"

static std::size_t tasks = 0;

static void run_in_threads(void*, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  tasks = total;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < total; ++i) threads.emplace_back(task, user, i);
  for (std::thread& thread : threads) thread.join();
}

template <class Thrown>
static const char* caught(const Thrown& thrown) {
  try {
    rigl::parallel_for({2, run_in_threads, nullptr, 0.0}, 8, [&](std::size_t i) {
      if (i % 2 != 0) throw thrown;
    });
  } catch (const std::exception& error) {
    return error.what()[0] == 'o' ? "std::exception " : "another exception ";
  } catch (int number) {
    return number == 7 ? "int " : "another int ";
  }
  return "nothing ";
}

static std::size_t tasks_of_vector(rigl::SparseMatMul* product, int threads) {
  const std::vector<float> x(64, 1.0f);
  std::vector<float> y(64);
  tasks = 1;
  product->run({x.data(), 1, nullptr, y.data(), false, false, {0.0f, 1.0f}}, {threads, run_in_threads, nullptr, 0.0});
  return tasks;
}

int main() {
  std::printf("%s", caught(std::runtime_error("of a worker")));
  std::printf("%s\n", caught(7));
  rigl::SparseMatrix identity;
  identity.rows = identity.columns = 64;
  for (std::uint32_t i = 0; i <= 64; ++i) identity.row_ptr.push_back(i);
  for (std::uint32_t i = 0; i < 64; ++i) identity.col_idx.push_back(i);
  identity.values.assign(64, 1.0f);
  rigl::SparseMatMul product(identity, rigl::kernels());
  for (const int threads : {1, 4, 2}) std::printf("%zu ", tasks_of_vector(&product, threads));
  std::printf("\n");
}
