// Operators called by several threads at once, each with its own pool, for the thread sanitizer.
//
// Sizes change from call to call, so that plans are created, shared and evicted concurrently. Numbers are integers, so
// every output must equal that of a single thread.
#include <atomic>
#include <thread>

#include "../../native/depthwise.h"
#include "../../native/gru.h"
#include "../../native/lstm.h"
#include "../../native/matmul.h"
#include "../../native/sparse_depthwise.h"
#include "harness.h"

using namespace harness;

namespace {

constexpr int kCallers = 4, kRounds = 24;

// Two threads that share the chunks of one loop.
void run_in_threads(void*, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < total; i = next++) task(user, i);
  };
  std::thread other(work);
  work();
  other.join();
}

rigl::Threads in_threads() { return {2, run_in_threads, nullptr, 0.0}; }

// Call `body(round, threads)` from one thread for the expected outputs, then from all callers at once.
template <class Body>
void from_all(const char* what, const Body& body) {
  std::vector<std::vector<float>> expected;
  for (int round = 0; round < kRounds; ++round) expected.push_back(body(round, serial_threads(1)));
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int n = 0; n < kRounds; ++n) {
        const int round = (n + 5 * caller) % kRounds;
        check(what, body(round, in_threads()), expected[static_cast<std::size_t>(round)], 0.0f);
      }
    });
  }
  for (std::thread& each : callers) each.join();
}

void products(const rigl::KernelTable& table) {
  Integers integers(1);
  rigl::SparseMatMul product(sparse_matrix(&integers, 70, 90, 30), table);
  from_all("product", [&](int round, const rigl::Threads& threads) {
    const std::size_t batch = static_cast<std::size_t>(round % 3 == 0 ? 1 : 9 * round);
    const std::vector<float> x = Integers(static_cast<std::uint32_t>(round)).numbers(batch * 90);
    std::vector<float> y(batch * 70);
    product.run({x.data(), batch, nullptr, y.data(), false, round % 2 == 0, {-kInfinity, kInfinity}}, threads);
    return y;
  });
}

void convolutions(const rigl::KernelTable& table, const rigl::Axis& axis) {
  Integers integers(2);
  const rigl::ConvShape shape = {axis, axis};
  rigl::SparseConv conv(sparse_matrix(&integers, 9, static_cast<std::uint32_t>(6 * shape.taps()), 40), shape, table);
  rigl::DepthwiseConv depthwise(integers.numbers(static_cast<std::size_t>(6 * shape.taps())), shape, table);
  rigl::SparseDepthwise widened(sparse_matrix(&integers, 7, 6, 20),
                                integers.numbers(static_cast<std::size_t>(7 * shape.taps())), shape, table);
  const bool reaches = axis.pad_begin <= axis.dilation * (axis.kernel - 1);
  from_all("convolution", [&](int round, const rigl::Threads& threads) {
    const std::int64_t height = 5 + round % 4, width = 5 + 3 * (round % 5);
    const auto pixels = static_cast<std::size_t>(axis.output(height) * axis.output(width));
    const std::vector<float> x =
        Integers(static_cast<std::uint32_t>(round)).numbers(static_cast<std::size_t>(2 * 6 * height * width));
    std::vector<float> y(2 * 22 * pixels + 14);
    conv.run({x.data(), 2, height, width, nullptr, nullptr, y.data(), {0.0f, kInfinity}}, threads);
    if (reaches) {
      depthwise.run({x.data(), 2, height, width, nullptr, nullptr, y.data() + 2 * 9 * pixels, {0.0f, kInfinity}},
                    threads);
      float* wide = y.data() + 2 * 15 * pixels;
      widened.run({{x.data(), 2, height, width, nullptr, nullptr, wide, {0.0f, kInfinity}},
                   nullptr,
                   {0.0f, kInfinity},
                   rigl::Activation::kNone,
                   wide + 14 * pixels},
                  threads);
    }
    return y;
  });
}

void states(const rigl::KernelTable& table, std::int32_t reset_after) {
  Integers integers(3);
  rigl::GruShape shape;
  shape.directions = 2;
  shape.backward[1] = 1;
  shape.reset_after = reset_after;
  rigl::SparseGru gru(sparse_matrix(&integers, 2 * 3 * 20, 20, 30), shape, table);
  from_all("state", [&](int round, const rigl::Threads& threads) {
    const std::size_t batch = static_cast<std::size_t>(1 + round % 4), steps = 3;
    const std::vector<float> x = Integers(static_cast<std::uint32_t>(round)).numbers(steps * batch * 2 * 60);
    std::vector<float> y(steps * 2 * batch * 20 + 2 * batch * 20);
    gru.run({x.data(), steps, batch, nullptr, nullptr, nullptr, y.data(), y.data() + steps * 2 * batch * 20}, threads);
    return y;
  });
}

void cells(const rigl::KernelTable& table, std::int32_t gates) {
  Integers integers(4);
  rigl::LstmShape shape;
  shape.directions = 2;
  shape.backward[1] = 1;
  shape.gates = gates;
  const std::size_t pitch = static_cast<std::size_t>(gates) * 20;
  rigl::SparseLstm lstm(sparse_matrix(&integers, static_cast<std::uint32_t>(2 * pitch), 20, 30), shape, table);
  from_all("cell", [&](int round, const rigl::Threads& threads) {
    const std::size_t batch = static_cast<std::size_t>(1 + round % 4), steps = 3, last = 2 * batch * 20;
    const std::vector<float> x = Integers(static_cast<std::uint32_t>(round)).numbers(steps * batch * 2 * pitch);
    std::vector<float> y((steps + 2) * last);
    float* end = y.data() + steps * last;
    lstm.run({x.data(), steps, batch, nullptr, nullptr, nullptr, y.data(), end, gates == 4 ? end + last : nullptr},
             threads);
    return y;
  });
}

}  // namespace

int main() {
  for (std::uint32_t set = 0; set < 3; ++set) {
    const rigl::KernelTable& table = kernels(set);
    products(table);
    for (const rigl::Axis& axis : {rigl::Axis{1, 1, 1, 0, 0}, rigl::Axis{3, 1, 1, 1, 1}, rigl::Axis{3, 2, 1, 1, 1},
                                   rigl::Axis{3, 1, 2, 0, 0}, rigl::Axis{2, 3, 1, 4, 4}}) {
      convolutions(table, axis);
    }
    states(table, 0);
    states(table, 1);
    cells(table, 1);
    cells(table, 4);
    std::printf("%s kernels: %d callers at once, no differences\n", table.name, kCallers);
  }
  return 0;
}
