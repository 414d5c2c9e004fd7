#include "bindings/exclusive.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace specqd {
namespace {

struct Use {
  const void* object;
  std::thread::id thread;
};

// The current uses by all threads. There are few, and each new use searches them all.
std::vector<Use>& uses() {
  static auto* const all = new std::vector<Use>;
  return *all;
}

}  // namespace

void Exclusive::take(const void* object) {
  const std::thread::id self = std::this_thread::get_id();
  for (const Use& use : uses())
    if (use.object == object && use.thread != self)
      throw InUse(
          "another thread uses this object of the core; use one LLM from all threads, or give each "
          "thread objects of its own");
  uses().push_back({object, self});
  ++taken_;
}

// The uses of one thread end in the reverse order in which they began.
Exclusive::~Exclusive() {
  const std::thread::id self = std::this_thread::get_id();
  std::vector<Use>& all = uses();
  for (; taken_ > 0; --taken_) {
    const auto last = std::find_if(all.rbegin(), all.rend(),
                                   [self](const Use& use) { return use.thread == self; });
    all.erase(std::next(last).base());
  }
}

}  // namespace specqd
