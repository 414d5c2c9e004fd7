// The threads of the core. A run executes one function on every thread (single program, multiple
// data). Within a run, threads divide work by claiming ranges and wait for each other at barriers.
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

// The threads of a pool on one NUMA node.
struct NodeThreads {
  int node = 0;  // its id
  int threads = 0;
  std::set<int> cpus = {};  // CPUs that the threads are bound to; empty: they are not bound
};

// A Placement says how a pool uses NUMA nodes.
struct Placement {
  std::vector<NodeThreads> nodes;
  bool replicates = false;     // each node has a copy of all weights; else panels are divided
  bool copies_mapped = false;  // also copy the weights of mapped packed files to the nodes
};

struct Range {
  int64_t first, last;
};

// How threads divide `count` items: of() returns the range of a claim, counted from 0. If all items
// are claimed, the range begins at `count` or later.

// Ranges of `grain` items.
struct EqualRanges {
  int64_t grain;
  Range of(int64_t claim, int64_t count, int64_t) const {
    return {claim * grain, std::min((claim + 1) * grain, count)};
  }
};

// Each round of claims, one per thread, divides half of the items that are left, but claims are not
// smaller than `least` (Hummel, Schonberg and Flynn, "Factoring", 1992). So a thread reads long
// runs of memory, and yet the threads end at nearly the same time. Ranges begin at even items if
// `least` is even.
struct ShrinkingRanges {
  int64_t least;
  Range of(int64_t claim, int64_t count, int64_t threads) const {
    int64_t first = 0, size;
    while ((size = (count - first) / (2 * threads) / 2 * 2) > least && claim >= threads) {
      first += threads * size;
      claim -= threads;
    }
    size = std::max(size, least);
    first += claim * size;
    return {first, std::min(first + size, count)};
  }
};

// One thread's view of a run.
class Team {
 public:
  Team(Pool& pool, int thread);
  int thread() const { return thread_; }
  int threads() const;
  int node() const { return node_; }  // index into the placement's nodes
  int nodes() const;
  int64_t bound(int node, int64_t panels) const;  // see Pool::bound()
  // Divides `items` among nodes in proportion to their threads: returns how many come before a
  // node's, rounded down.
  int64_t part(int node, int64_t items) const;
  // Whether part() is exact, not rounded.
  bool is_even(int node, int64_t items) const;

  // Names what the thread does from now until the next barrier or stage, for traces.
  void stage(const char* name);

  // Waits for all threads. Everything that they wrote before it is visible after it. If another
  // thread's body has thrown, this throws too, to end the body.
  void barrier();

  // Calls body(first, last) for disjoint ranges that cover [0, count). Free threads take the next
  // range. Ends with a barrier.
  template <class Ranges, class Body>
  void divide(int64_t count, const Ranges& ranges, const Body& body) {
    for (Range range; (range = ranges.of(claim(), count, threads())).first < count;)
      body(range.first, range.last);
    barrier();
  }
  // The same in ranges of `grain` items.
  template <class Body>
  void share(int64_t count, int64_t grain, const Body& body) {
    divide(count, EqualRanges{grain}, body);
  }

  // Like divide(), for items that belong to nodes: those of node n are [bound(n), bound(n + 1)). A
  // thread claims items of its own node first. Then it helps other nodes, but only with the last
  // twentieth of their items, unless each node has a copy of all weights.
  template <class Ranges, class Bound, class Body>
  void share_by_node(int64_t count, const Ranges& ranges, const Bound& bound, const Body& body) {
    if (nodes() == 1) return divide(count, ranges, body);
    claim_by_node(ranges, bound, replicates() ? 1 : kStealable, body);
    barrier();
  }
  // The same for items that are being placed on nodes: a thread claims only items of its own node.
  template <class Bound, class Body>
  void share_in_place(int64_t count, int64_t grain, const Bound& bound, const Body& body) {
    if (nodes() == 1) return share(count, grain, body);
    claim_by_node(EqualRanges{grain}, bound, kNothingStealable, body);
    barrier();
  }

  // Counts, for Pool::tally(), that this thread has read panels [first, last) of `panels`.
  void tally(int64_t panels, int64_t first, int64_t last, size_t panel_bytes);

 private:
  static constexpr int64_t kStealable = 20, kNothingStealable = std::numeric_limits<int64_t>::max();

  template <class Ranges, class Bound, class Body>
  void claim_by_node(const Ranges& ranges, const Bound& bound, int64_t stealable,
                     const Body& body) {
    for (int i = 0; i < nodes(); ++i) {
      const int node = (node_ + i) % nodes();
      const int64_t begin = bound(node), count = bound(node + 1) - begin;
      const int64_t least = i == 0 ? 0 : count - count / stealable;
      const auto range_of = [&](int64_t claim) {
        return ranges.of(claim, count, threads_of(node));
      };
      while (range_of(claims_on(node)).first >= least) {
        const Range range = range_of(claim_on(node));
        if (range.first >= count) break;
        body(begin + range.first, begin + range.last);
      }
    }
  }

  // The number of the next claim, and the number of claims so far.
  int64_t claim();
  int64_t claim_on(int node);
  int64_t claims_on(int node) const;
  int64_t threads_of(int node) const;
  bool replicates() const;
  Pool& pool_;
  int thread_, node_;
};

// The bounds of the nodes' panels, for share_by_node() and share_in_place().
inline auto panels_of(const Team& team, int64_t panels) {
  return [&team, panels](int node) { return team.bound(node, panels); };
}

// The system did not start as many threads as requested.
struct TooManyThreads : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Pool {
 public:
  // Starts threads - 1 workers; the caller of run() is thread 0. Throws TooManyThreads.
  explicit Pool(int threads) : Pool(Placement{{{.threads = threads}}}) {}
  // Throws std::invalid_argument if a node has no threads. During a run, its caller is bound to the
  // CPUs of the first node.
  explicit Pool(Placement placement);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  const Placement& placement() const { return placement_; }
  int nodes() const { return static_cast<int>(placement_.nodes.size()); }
  // Index of a node's first panel, of `panels`. It is even, because panels of gates and ups come in
  // pairs.
  int64_t bound(int node, int64_t panels) const;
  // The number of threads that the system did not bind to their node's CPUs when last asked.
  int unbound() const;

  // Bytes of panels that the threads of each node have read since reset_tally(),
  // [threads' node][panels' node]. They are counted only if there are several nodes.
  std::vector<std::vector<uint64_t>> tally() const;
  void reset_tally();

  // Starts to record the stages and waits of all runs; stop_trace() ends this and returns them.
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

  // Where a thread runs, and what it has read.
  struct alignas(64) Place {
    std::atomic<int> cpu{-1};  // on which the thread last waited
    std::atomic<bool> is_unbound{false};
    int node = 0;
    std::vector<uint64_t> bytes;  // of panels read, by the panels' node
  };
  struct alignas(64) Claims {
    std::atomic<int64_t> count{0};
  };
  void bind(int thread);

  const Placement placement_;
  const int threads_;
  bool is_bound_ = false;               // whether any node lists CPUs
  std::vector<int64_t> first_threads_;  // by node; the last entry is the number of threads
  std::mutex running_;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  bool stopping_ = false;
  std::unique_ptr<Trace> trace_;                // null: nothing is recorded
  std::exception_ptr error_;                    // of the first body that threw
  alignas(64) std::atomic<uint32_t> round_{0};  // number of runs; workers wait for the next
  alignas(64) std::atomic<int64_t> claims_{0};  // of the items that are being shared
  std::vector<Claims> node_claims_;             // the same by node; empty if there is one node
  Meeting barrier_, end_;
  std::atomic<bool> has_failed_{false};  // whether a body of this run has thrown
  std::vector<Place> places_;
  std::unique_ptr<std::vector<std::thread>> workers_;  // null: not started
};

}  // namespace specqd
