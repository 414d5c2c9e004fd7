// The threads of the core. A run gives every thread the same function (single program, multiple
// data); inside it threads share work by claiming ranges, and meet at barriers.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace specqd {

class Pool;

// One thread's view of a run.
class Team {
 public:
  Team(Pool& pool, int thread) : pool_(pool), thread_(thread) {}
  int thread() const { return thread_; }
  int threads() const;

  // Waits for all threads; what they wrote before is visible after.
  void barrier();

  // body(first, last) over disjoint ranges of [0, count), `grain` items at a time, each range on
  // whichever thread is free; ends with a barrier.
  template <class Body>
  void share(int64_t count, int64_t grain, const Body& body) {
    for (int64_t first; (first = claim(grain)) < count;)
      body(first, first + grain < count ? first + grain : count);
    barrier();
  }

 private:
  int64_t claim(int64_t grain);
  Pool& pool_;
  int thread_;
};

class Pool {
 public:
  // The caller of run() is thread 0; threads - 1 workers are started.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // body(Team&) on every thread; returns when all have ended. The body must not throw. Concurrent
  // runs wait for one another.
  template <class Body>
  void run(const Body& body) {
    run_erased([](const void* context, Team& team) { (*static_cast<const Body*>(context))(team); },
               &body);
  }

 private:
  friend class Team;
  using Task = void (*)(const void* context, Team& team);
  void run_erased(Task task, const void* context);
  void work(int thread);
  void await_change(const std::atomic<uint32_t>& value, uint32_t old, int thread);
  bool shares_core(int thread);

  // Where each thread was when it last had to wait.
  struct alignas(64) Place {
    std::atomic<int> cpu{-1};
  };

  const int threads_;
  std::mutex running_;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<uint32_t> round_{0};    // counts runs; workers wait for the next
  alignas(64) std::atomic<uint32_t> arrived_{0};  // at the barrier
  alignas(64) std::atomic<uint32_t> phase_{0};    // counts barriers passed
  alignas(64) std::atomic<int64_t> claimed_{0};   // of the range being shared
  std::vector<Place> places_;
  std::vector<std::thread> workers_;
};

}  // namespace specqd
