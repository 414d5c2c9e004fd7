// The threads of the core. A run executes one function on every thread (single program, multiple
// data). Inside it, threads share work by claiming ranges and wait for each other at barriers.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/trace.h"

namespace specqd {

class Pool;

// One thread's view of a run.
class Team {
 public:
  Team(Pool& pool, int thread) : pool_(pool), thread_(thread) {}
  int thread() const { return thread_; }
  int threads() const;

  // Names what the thread does from here to the next barrier or stage, for a trace.
  void stage(const char* name);

  // Waits for all threads. Everything that they wrote before is visible afterwards. Throws, to end
  // the body, where another thread's body has thrown.
  void barrier();

  // Calls body(first, last) for disjoint ranges of [0, count) of `grain` items, each on the next
  // free thread; ends with a barrier.
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

// The system did not start as many threads as were asked for.
struct TooManyThreads : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Pool {
 public:
  // Starts threads - 1 workers; the caller of run() is thread 0. Throws TooManyThreads.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Records stages and waits of all runs from now on; stop_trace() returns them.
  void start_trace();
  std::vector<Trace::Span> stop_trace();

  // Calls body(Team&) on every thread and returns when all have ended. If a body throws, the others
  // end at their next barrier, and the exception is thrown here. Concurrent runs wait for one
  // another. The first run in a forked process starts workers there, which may throw
  // TooManyThreads.
  template <class Body>
  void run(const Body& body) {
    run_erased([](const void* context, Team& team) { (*static_cast<const Body*>(context))(team); },
               &body);
  }

 private:
  friend class Team;
  friend class Pools;
  struct Meeting {
    alignas(64) std::atomic<uint32_t> arrived{0};  // threads
    alignas(64) std::atomic<uint32_t> phase{0};    // number of times that all have met
  };

  using Task = void (*)(const void* context, Team& team);
  void run_erased(Task task, const void* context);
  void start();
  void stop();
  void forget_workers();
  void work(int thread);
  void run_task(Team& team);
  bool meet(Meeting& meeting, int thread);
  void await_change(const std::atomic<uint32_t>& value, uint32_t old, int thread);
  bool shares_core(int thread);

  // The CPU on which a thread last waited.
  struct alignas(64) Place {
    std::atomic<int> cpu{-1};
  };

  const int threads_;
  std::mutex running_;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  bool stopping_ = false;
  std::unique_ptr<Trace> trace_;                 // null: nothing is recorded
  std::exception_ptr error_;                     // of the first body that threw
  alignas(64) std::atomic<uint32_t> round_{0};   // number of runs; workers wait for the next
  alignas(64) std::atomic<int64_t> claimed_{0};  // items of the shared range
  Meeting barrier_, end_;
  std::atomic<bool> has_failed_{false};  // a body of this run has thrown
  std::vector<Place> places_;
  std::unique_ptr<std::vector<std::thread>> workers_;  // null: not started
};

}  // namespace specqd
