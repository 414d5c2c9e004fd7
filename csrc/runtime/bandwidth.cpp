#include "runtime/bandwidth.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "runtime/memory.h"

namespace specqd {
namespace {

// Seconds of each of `repeats` runs of work(thread) on all threads.
template <class F>
std::vector<double> measure_seconds(Pool& pool, int repeats, const F& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    pool.run([&](Team& team) { work(static_cast<size_t>(team.thread())); });
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

}  // namespace

std::vector<double> measure_read_seconds(Pool& pool, const Kernels& kernels, size_t bytes,
                                         int repeats) {
  const size_t share = bytes / static_cast<size_t>(pool.threads()) / 256 * 256;
  const Memory memory(share * static_cast<size_t>(pool.threads()));
  pool.run([&](Team& team) {
    std::memset(memory.data() + static_cast<size_t>(team.thread()) * share, team.thread() + 1,
                share);
  });
  std::atomic<uint64_t> sink{0};
  return measure_seconds(pool, repeats, [&](size_t thread) {
    sink += kernels.read_bytes(memory.data() + thread * share, share);
  });
}

std::vector<double> measure_product_seconds(Pool& pool, const Kernels& kernels, int repeats) {
  return measure_seconds(pool, repeats, [&](size_t) { kernels.multiply_registers(kPeakRounds); });
}

}  // namespace specqd
