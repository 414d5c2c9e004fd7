#include "runtime/pool.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#if defined(__linux__)
#include <sched.h>
#endif

#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/float_mode.h"
#include "runtime/system.h"

namespace specqd {

// All pools of the process. A fork copies none of their threads, so the new process must forget
// them.
class Pools {
 public:
  static Pools& all() {
    static Pools* const pools = new Pools;
    return *pools;
  }
  void add(Pool* pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pools_.insert(pool);
  }
  void remove(Pool* pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pools_.erase(pool);
  }

 private:
  Pools() {
#if !defined(_WIN32)  // which has no forks
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                   [] {
                     for (Pool* pool : all().pools_) pool->forget_workers();
                     all().mutex_.unlock();
                   });
#endif
  }

  std::mutex mutex_;
  std::set<Pool*> pools_;
};

namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // most cores treat `yield` as no operation
#endif
}

// A waiting thread spins for about 100 microseconds, which is longer than the work between two
// barriers, and then sleeps.
#if defined(__aarch64__)
// A pause takes between a few and many nanoseconds, depending on the core, so a clock bounds them.
class SpinBound {
 public:
  bool allows(int) const { return ticks() - start_ < limit_; }

 private:
  static uint64_t ticks() {
    uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
  }
  static uint64_t ticks_per_second() {
    uint64_t frequency;
    asm("mrs %0, cntfrq_el0" : "=r"(frequency));
    return frequency;
  }
  const uint64_t limit_ = ticks_per_second() / 10'000, start_ = ticks();
};
#else
class SpinBound {
 public:
  bool allows(int spins) const { return spins < kSpins; }

 private:
  static constexpr int kSpins = 2000;
};
#endif
constexpr int kSpinsPerCheck = 32;

// notify_all() first reads whether a thread waits. The awaited value must be stored before that
// read, and release order does not guarantee this: a thread that went to sleep in between would
// never be woken.
constexpr auto kBeforeWaking = std::memory_order_seq_cst;

int count_threads(const Placement& placement) {
  int threads = 0;
  for (const NodeThreads& node : placement.nodes) {
    if (node.threads < 1) throw std::invalid_argument("each node of a pool needs a thread");
    threads += node.threads;
  }
  if (threads < 1) throw std::invalid_argument("a pool needs at least one thread");
  return threads;
}

#if defined(__linux__)
// Binds the calling thread to CPUs; returns whether the system allowed it.
bool bind_to(const std::set<int>& cpus) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &mask);
  return sched_setaffinity(0, sizeof(mask), &mask) == 0;
}

// Saves the calling thread's affinity mask and restores it at the end.
class KeepAffinity {
 public:
  KeepAffinity() : is_known_(sched_getaffinity(0, sizeof(mask_), &mask_) == 0) {}
  ~KeepAffinity() {
    if (is_known_) sched_setaffinity(0, sizeof(mask_), &mask_);
  }
  KeepAffinity(const KeepAffinity&) = delete;
  KeepAffinity& operator=(const KeepAffinity&) = delete;

 private:
  cpu_set_t mask_;
  bool is_known_;
};
#else
bool bind_to(const std::set<int>&) { return false; }
struct KeepAffinity {};
#endif

// Thrown at a barrier to end a thread's body, because the body of another thread has thrown.
struct OtherFailed {};

}  // namespace

// Whether another thread of the pool last waited on this thread's CPU. On a busy machine, the
// system may run two threads on one CPU, and then a spinning thread holds up the one that it waits
// for.
bool Pool::shares_core(int thread) {
  const int cpu = current_cpu();
  places_[static_cast<size_t>(thread)].cpu.store(cpu, std::memory_order_relaxed);
  for (int other = 0; other < threads_; ++other)
    if (other != thread && cpu >= 0 &&
        places_[static_cast<size_t>(other)].cpu.load(std::memory_order_relaxed) == cpu)
      return true;
  return false;
}

void Pool::await_change(const std::atomic<uint32_t>& value, uint32_t old, int thread) {
  const SpinBound bound;
  for (int i = 0; bound.allows(i); ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
    if (i % kSpinsPerCheck == 0 && shares_core(thread)) std::this_thread::yield();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

Team::Team(Pool& pool, int thread)
    : pool_(pool), thread_(thread), node_(pool.places_[static_cast<size_t>(thread)].node) {}

int Team::threads() const { return pool_.threads_; }

int Team::nodes() const { return pool_.nodes(); }

bool Team::replicates() const { return pool_.placement_.replicates; }

int64_t Team::bound(int node, int64_t panels) const { return pool_.bound(node, panels); }

int64_t Team::part(int node, int64_t items) const {
  return items * pool_.first_threads_[static_cast<size_t>(node)] / pool_.threads_;
}

bool Team::is_even(int node, int64_t items) const {
  return items * pool_.first_threads_[static_cast<size_t>(node)] % pool_.threads_ == 0;
}

int64_t Pool::bound(int node, int64_t panels) const {
  if (node == nodes()) return panels;
  return panels * first_threads_[static_cast<size_t>(node)] / threads_ / 2 * 2;
}

int64_t Team::claim() { return pool_.claims_.fetch_add(1, std::memory_order_relaxed); }

int64_t Team::claim_on(int node) {
  return pool_.node_claims_[static_cast<size_t>(node)].count.fetch_add(1,
                                                                       std::memory_order_relaxed);
}

int64_t Team::claims_on(int node) const {
  return pool_.node_claims_[static_cast<size_t>(node)].count.load(std::memory_order_relaxed);
}

int64_t Team::threads_of(int node) const {
  return pool_.placement_.nodes[static_cast<size_t>(node)].threads;
}

void Team::tally(int64_t panels, int64_t first, int64_t last, size_t panel_bytes) {
  if (nodes() == 1) return;
  auto& bytes = pool_.places_[static_cast<size_t>(thread_)].bytes;
  for (int node = 0; node < nodes(); ++node) {
    const int64_t from = std::max(first, bound(node, panels));
    const int64_t to = std::min(last, bound(node + 1, panels));
    if (from < to)
      bytes[static_cast<size_t>(replicates() ? node_ : node)] +=
          static_cast<uint64_t>(to - from) * panel_bytes;
  }
}

void Team::stage(const char* name) {
  if (pool_.trace_ != nullptr) [[unlikely]]
    pool_.trace_->begin(thread_, name);
}

void Team::barrier() {
  stage("wait");
  if (!pool_.meet(pool_.barrier_, thread_)) throw OtherFailed();
  stage(nullptr);
}

// Waits for all threads. At the barrier, returns false if one of them has thrown: that thread sets
// has_failed_ first and then changes the phase, so every other thread sees one of the two.
bool Pool::meet(Meeting& meeting, int thread) {
  const bool is_barrier = &meeting == &barrier_;
  const uint32_t phase = meeting.phase.load(std::memory_order_acquire);
  if (is_barrier && has_failed_.load(std::memory_order_relaxed)) return false;
  const auto all = static_cast<uint32_t>(threads_);
  if (all > 1)
    places_[static_cast<size_t>(thread)].cpu.store(current_cpu(), std::memory_order_relaxed);
  if (meeting.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
    meeting.arrived.store(0, std::memory_order_relaxed);
    claims_.store(0, std::memory_order_relaxed);
    for (Claims& claims : node_claims_) claims.count.store(0, std::memory_order_relaxed);
    meeting.phase.store(phase + 1, kBeforeWaking);
    if (all > 1) meeting.phase.notify_all();
  } else {
    await_change(meeting.phase, phase, thread);
  }
  return !is_barrier || !has_failed_.load(std::memory_order_relaxed);
}

Pool::Pool(Placement placement)
    : placement_(std::move(placement)),
      threads_(count_threads(placement_)),
      places_(static_cast<size_t>(threads_)) {
  const size_t nodes = placement_.nodes.size();
  if (nodes > 1) node_claims_ = std::vector<Claims>(nodes);
  size_t thread = 0;
  for (size_t node = 0; node < nodes; ++node) {
    first_threads_.push_back(static_cast<int64_t>(thread));
    is_bound_ = is_bound_ || !placement_.nodes[node].cpus.empty();
    for (int i = 0; i < placement_.nodes[node].threads; ++i, ++thread) {
      places_[thread].node = static_cast<int>(node);
      places_[thread].bytes.assign(nodes, 0);
    }
  }
  first_threads_.push_back(threads_);
  start();
  Pools::all().add(this);
}

Pool::~Pool() {
  Pools::all().remove(this);
  if (workers_ != nullptr) stop();
}

void Pool::start() {
  stopping_ = has_failed_ = false;
  error_ = nullptr;
  round_ = barrier_.arrived = end_.arrived = 0;
  claims_ = 0;
  for (Claims& claims : node_claims_) claims.count = 0;
  workers_ = std::make_unique<std::vector<std::thread>>();
  try {
    workers_->reserve(static_cast<size_t>(threads_ - 1));
    for (int i = 1; i < threads_; ++i) workers_->emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const size_t started = workers_->size() + 1;
    stop();
    throw TooManyThreads(std::to_string(threads_) + " threads: the system allows " +
                         std::to_string(started) + " (" + error.code().message() +
                         "); use fewer threads, or raise its limits");
  } catch (...) {
    stop();
    throw;
  }
}

void Pool::stop() {
  stopping_ = true;
  round_.fetch_add(1, kBeforeWaking);
  round_.notify_all();
  for (std::thread& worker : *workers_) worker.join();
  workers_.reset();
}

// Called in a forked process, which has none of the other threads. The workers' handles can be
// neither joined nor detached, and a thread that was in run() will never unlock the mutex.
void Pool::forget_workers() {
  workers_.release();
  new (&running_) std::mutex;
}

void Pool::bind(int thread) {
  Place& place = places_[static_cast<size_t>(thread)];
  const std::set<int>& cpus = placement_.nodes[static_cast<size_t>(place.node)].cpus;
  if (!cpus.empty()) place.is_unbound = !bind_to(cpus);
}

int Pool::unbound() const {
  return static_cast<int>(
      std::ranges::count_if(places_, [](const Place& place) { return place.is_unbound.load(); }));
}

std::vector<std::vector<uint64_t>> Pool::tally() const {
  const size_t nodes = placement_.nodes.size();
  std::vector<std::vector<uint64_t>> bytes(nodes, std::vector<uint64_t>(nodes));
  for (const Place& place : places_)
    for (size_t node = 0; node < nodes; ++node)
      bytes[static_cast<size_t>(place.node)][node] += place.bytes[node];
  return bytes;
}

void Pool::reset_tally() {
  const std::lock_guard<std::mutex> lock(running_);
  for (Place& place : places_) std::ranges::fill(place.bytes, 0);
}

void Pool::start_trace() {
  const std::lock_guard<std::mutex> lock(running_);
  trace_ = std::make_unique<Trace>(threads_);
}

std::vector<Trace::Span> Pool::stop_trace() {
  const std::lock_guard<std::mutex> lock(running_);
  const auto trace = std::move(trace_);
  return trace == nullptr ? std::vector<Trace::Span>() : trace->spans();
}

void Pool::work(int thread) {
  const FlushSubnormals flush;
  bind(thread);
  Team team(*this, thread);
  for (uint32_t round = 0;; ++round) {
    await_change(round_, round, thread);
    if (stopping_) return;
    run_task(team);
  }
}

void Pool::run_task(Team& team) {
  try {
    task_(context_, team);
  } catch (...) {
    if (!has_failed_.exchange(true)) {
      error_ = std::current_exception();
      barrier_.phase.fetch_add(1, kBeforeWaking);
      barrier_.phase.notify_all();
    }
  }
  meet(end_, team.thread());
}

void Pool::run_erased(Task task, const void* context) {
  const std::lock_guard<std::mutex> lock(running_);
  if (workers_ == nullptr) start();
  const FlushSubnormals flush;
  std::optional<KeepAffinity> kept;
  if (is_bound_) {
    kept.emplace();
    bind(0);
  }
  task_ = task;
  context_ = context;
  round_.fetch_add(1, kBeforeWaking);
  if (threads_ > 1) round_.notify_all();
  Team team(*this, 0);
  run_task(team);
  if (error_ == nullptr) return;
  barrier_.arrived = 0;
  has_failed_ = false;
  std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace specqd
