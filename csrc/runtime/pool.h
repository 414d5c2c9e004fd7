// The threads of the core. A run executes one function on every thread (single program, multiple
// data). Inside it, threads share work by claiming ranges and wait for each other at barriers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/trace.h"

namespace specqd {

class Pool;

// The threads of a pool on one NUMA node, and the CPUs that they are bound to; none: all.
struct NodeThreads {
  int node = 0;  // its id
  int threads = 0;
  std::set<int> cpus = {};
};

// The use of NUMA nodes by a pool. Weights are divided among them by panels, or each has all.
struct Placement {
  std::vector<NodeThreads> nodes;
  bool replicates = false;
  bool copies_mapped = false;  // weights of packed files are copied to the nodes too
};

// One thread's view of a run.
class Team {
 public:
  Team(Pool& pool, int thread);
  int thread() const { return thread_; }
  int threads() const;
  int node() const { return node_; }  // index into the placement's nodes
  int nodes() const;
  int64_t bound(int node, int64_t panels) const;  // as the pool's
  // The share of `items` before a node, by threads, and whether it is a whole number.
  int64_t part(int node, int64_t items) const;
  bool is_even(int node, int64_t items) const;

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

  // The same for items that lie on nodes: those of node n are [bound(n), bound(n + 1)). A thread
  // claims items of its own node first. Then it helps the others, with their last twentieth only
  // (all, where each node has a copy).
  template <class Bound, class Body>
  void share_by_node(int64_t count, int64_t grain, const Bound& bound, const Body& body) {
    if (nodes() == 1) return share(count, grain, body);
    claim_by_node(grain, bound, replicates() ? 1 : kStealable, body);
    barrier();
  }
  // The same, where a thread leaves other nodes' items alone: they are being placed.
  template <class Bound, class Body>
  void share_in_place(int64_t count, int64_t grain, const Bound& bound, const Body& body) {
    if (nodes() == 1) return share(count, grain, body);
    claim_by_node(grain, bound, kNothingStealable, body);
    barrier();
  }

  // Counts the bytes of panels [first, last) of `panels` as read by this thread, by their node.
  void tally(int64_t panels, int64_t first, int64_t last, size_t panel_bytes);

 private:
  static constexpr int64_t kStealable = 20, kNothingStealable = std::numeric_limits<int64_t>::max();

  template <class Bound, class Body>
  void claim_by_node(int64_t grain, const Bound& bound, int64_t stealable, const Body& body) {
    for (int i = 0; i < nodes(); ++i) {
      const int node = (node_ + i) % nodes();
      const int64_t begin = bound(node), count = bound(node + 1) - begin;
      const int64_t least = i == 0 ? 0 : count - count / stealable;
      for (int64_t first; (first = claim_on(node, least, grain)) < count;)
        body(begin + first, begin + std::min(first + grain, count));
    }
  }

  int64_t claim(int64_t grain);
  int64_t claim_on(int node, int64_t least, int64_t grain);
  bool replicates() const;
  Pool& pool_;
  int thread_, node_;
};

// The first panel of each node, for the claims of a team.
inline auto panels_of(const Team& team, int64_t panels) {
  return [&team, panels](int node) { return team.bound(node, panels); };
}

// The system did not start as many threads as were asked for.
struct TooManyThreads : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Pool {
 public:
  // Starts threads - 1 workers; the caller of run() is thread 0. Throws TooManyThreads.
  explicit Pool(int threads) : Pool(Placement{{{.threads = threads}}}) {}
  // Throws std::invalid_argument for a node without threads. The caller of run() is bound to the
  // first node during the run.
  explicit Pool(Placement placement);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  const Placement& placement() const { return placement_; }
  int nodes() const { return static_cast<int>(placement_.nodes.size()); }
  // The first of `panels` panels that lies on a node; even, since gates and ups come in pairs.
  int64_t bound(int node, int64_t panels) const;
  // Threads that the system did not bind to their node's CPUs, the last time that it was asked.
  int unbound() const;

  // Bytes of panels that the threads of a node read since reset_tally(), [node][panels' node].
  // Counted only where there are several nodes.
  std::vector<std::vector<uint64_t>> tally() const;
  void reset_tally();

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

  // The CPU on which a thread last waited, and what it is to the nodes.
  struct alignas(64) Place {
    std::atomic<int> cpu{-1};
    std::atomic<bool> is_unbound{false};
    int node = 0;
    std::vector<uint64_t> bytes;  // read of panels, by node
  };
  struct alignas(64) Claims {
    std::atomic<int64_t> count{0};
  };
  void bind(int thread);

  const Placement placement_;
  const int threads_;
  bool is_bound_ = false;               // some node names CPUs
  std::vector<int64_t> first_threads_;  // by node, and the end
  std::mutex running_;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  bool stopping_ = false;
  std::unique_ptr<Trace> trace_;                 // null: nothing is recorded
  std::exception_ptr error_;                     // of the first body that threw
  alignas(64) std::atomic<uint32_t> round_{0};   // number of runs; workers wait for the next
  alignas(64) std::atomic<int64_t> claimed_{0};  // items of the shared range
  std::vector<Claims> node_claims_;              // the same by node; empty for one node
  Meeting barrier_, end_;
  std::atomic<bool> has_failed_{false};  // a body of this run has thrown
  std::vector<Place> places_;
  std::unique_ptr<std::vector<std::thread>> workers_;  // null: not started
};

}  // namespace specqd
