#include "runtime/pool.h"

#include <pthread.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include <new>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/float_mode.h"

namespace specqd {

// All pools of the process: a fork copies none of their threads.
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
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                   [] {
                     for (Pool* pool : all().pools_) pool->forget_workers();
                     all().mutex_.unlock();
                   });
  }

  std::mutex mutex_;
  std::set<Pool*> pools_;
};

namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int current_cpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Threads spin for about 100 microseconds, longer than the work between two barriers, then park.
constexpr int kSpins = 2000;
constexpr int kSpinsPerCheck = 32;

// notify_all() first reads whether a thread waits. The awaited value must be stored before that
// read, which release order does not guarantee: a thread that parked in between was never woken.
constexpr auto kBeforeWaking = std::memory_order_seq_cst;

// Ends the body of a thread because that of another one has thrown.
struct OtherFailed {};

}  // namespace

// On a busy machine the system may run two of the pool's threads on one core. Then a spinning
// thread holds back the thread that it waits for.
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
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
    if (i % kSpinsPerCheck == 0 && shares_core(thread)) std::this_thread::yield();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

int Team::threads() const { return pool_.threads_; }

int64_t Team::claim(int64_t grain) {
  return pool_.claimed_.fetch_add(grain, std::memory_order_relaxed);
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

// Waits for all threads. At the barrier, returns false where one of them has thrown: it sets
// has_failed_ first and then changes the phase, so each thread sees one of the two.
bool Pool::meet(Meeting& meeting, int thread) {
  const bool is_barrier = &meeting == &barrier_;
  const uint32_t phase = meeting.phase.load(std::memory_order_acquire);
  if (is_barrier && has_failed_.load(std::memory_order_relaxed)) return false;
  const auto all = static_cast<uint32_t>(threads_);
  if (all > 1)
    places_[static_cast<size_t>(thread)].cpu.store(current_cpu(), std::memory_order_relaxed);
  if (meeting.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
    meeting.arrived.store(0, std::memory_order_relaxed);
    claimed_.store(0, std::memory_order_relaxed);
    meeting.phase.store(phase + 1, kBeforeWaking);
    if (all > 1) meeting.phase.notify_all();
  } else {
    await_change(meeting.phase, phase, thread);
  }
  return !is_barrier || !has_failed_.load(std::memory_order_relaxed);
}

Pool::Pool(int threads) : threads_(threads), places_(static_cast<size_t>(threads)) {
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
  claimed_ = 0;
  workers_ = std::make_unique<std::vector<std::thread>>();
  try {
    workers_->reserve(static_cast<size_t>(threads_ - 1));
    for (int i = 1; i < threads_; ++i) workers_->emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const size_t started = workers_->size() + 1;
    stop();
    throw TooManyThreads("--threads " + std::to_string(threads_) + ": the system allows " +
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

// In a forked process, which has none of the threads: neither the workers, whose handles can be
// neither joined nor detached, nor one that was in run().
void Pool::forget_workers() {
  workers_.release();
  new (&running_) std::mutex;
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
