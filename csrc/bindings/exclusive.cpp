#include "bindings/exclusive.h"

#include <thread>
#include <unordered_map>

namespace specqd {
namespace {

struct User {
  std::thread::id thread;
  int depth = 0;
};

std::unordered_map<const void*, User>& users() {
  static auto* const by_object = new std::unordered_map<const void*, User>;
  return *by_object;
}

}  // namespace

void Exclusive::take(const void* object) {
  const std::thread::id self = std::this_thread::get_id();
  taken_.reserve(taken_.size() + 1);
  User& user = users().try_emplace(object, User{self}).first->second;
  if (user.thread != self)
    throw InUse(
        "another thread uses this object of the core; share one LLM between threads, or give each "
        "thread objects of its own");
  ++user.depth;
  taken_.push_back(object);
}

Exclusive::~Exclusive() {
  for (const void* object : taken_)
    if (const auto at = users().find(object); --at->second.depth == 0) users().erase(at);
}

}  // namespace specqd
