// Records what each thread of a pool did and when: stages of work, and waits at barriers.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace specqd {

class Trace {
 public:
  struct Span {
    int thread;
    const char* stage;
    int64_t begin, end;  // nanoseconds since the trace began
  };

  explicit Trace(int threads) : lanes_(static_cast<size_t>(threads)) {}

  // Ends the thread's current stage and begins `stage`, unless it is null. Each thread calls this
  // for itself.
  void begin(int thread, const char* stage) {
    Lane& lane = lanes_[static_cast<size_t>(thread)];
    const int64_t now = std::chrono::nanoseconds(Clock::now() - start_).count();
    if (lane.stage != nullptr) lane.spans.push_back({thread, lane.stage, lane.begin, now});
    lane.stage = stage;
    lane.begin = now;
  }

  // The spans that have ended, ordered by thread and time. Must not be called while a thread
  // records.
  std::vector<Span> spans() const {
    std::vector<Span> all;
    for (const Lane& lane : lanes_) all.insert(all.end(), lane.spans.begin(), lane.spans.end());
    return all;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Lane {
    const char* stage = nullptr;
    int64_t begin = 0;
    std::vector<Span> spans;
  };

  const Clock::time_point start_ = Clock::now();
  std::vector<Lane> lanes_;
};

}  // namespace specqd
