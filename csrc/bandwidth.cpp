#include "bandwidth.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "pack.h"

namespace specqd {

std::vector<double> measure_read_seconds(Pool& pool, const Kernels& kernels, size_t bytes,
                                         int repeats) {
  using Clock = std::chrono::steady_clock;
  const size_t share = bytes / static_cast<size_t>(pool.threads()) / 256 * 256;
  const Memory memory(share * static_cast<size_t>(pool.threads()));
  pool.run([&](Team& team) {
    std::memset(memory.data() + static_cast<size_t>(team.thread()) * share, team.thread() + 1,
                share);
  });
  std::vector<double> seconds;
  std::atomic<uint64_t> sink{0};
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    pool.run([&](Team& team) {
      sink += kernels.read_bytes(memory.data() + static_cast<size_t>(team.thread()) * share, share);
    });
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

}  // namespace specqd
