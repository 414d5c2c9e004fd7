#include "runtime/bandwidth.h"

#include <atomic>
#include <chrono>
#include <cstring>

namespace specqd {
namespace {

// Runs work(thread) on all threads; returns the seconds that it takes.
template <class F>
double measure_seconds(Pool& pool, const F& work) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  pool.run([&](Team& team) { work(static_cast<size_t>(team.thread())); });
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

PlainReads::PlainReads(Pool& pool, const Kernels& kernels, size_t bytes)
    : pool_(pool),
      kernels_(kernels),
      share_(bytes / static_cast<size_t>(pool.threads()) / 256 * 256),
      memory_(share_ * static_cast<size_t>(pool.threads())) {
  pool_.run([&](Team& team) {
    std::memset(memory_.data() + static_cast<size_t>(team.thread()) * share_, team.thread() + 1,
                share_);
  });
}

double PlainReads::read_seconds() {
  std::atomic<uint64_t> sink{0};
  return measure_seconds(pool_, [&](size_t thread) {
    sink += kernels_.read_bytes(memory_.data() + thread * share_, share_);
  });
}

std::vector<double> measure_product_seconds(Pool& pool, const Kernels& kernels, int repeats) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i)
    seconds.push_back(
        measure_seconds(pool, [&](size_t) { kernels.multiply_registers(kPeakRounds); }));
  return seconds;
}

}  // namespace specqd
