#include "runtime/bandwidth.h"

#include <atomic>
#include <chrono>
#include <cstring>

namespace specqd {

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
  using Clock = std::chrono::steady_clock;
  std::atomic<uint64_t> sink{0};
  const auto start = Clock::now();
  pool_.run([&](Team& team) {
    const auto thread = static_cast<size_t>(team.thread());
    sink += kernels_.read_bytes(memory_.data() + thread * share_, share_);
  });
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace specqd
