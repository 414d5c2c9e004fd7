// What the forward of a draft head keeps of each sequence, found by the sequence or by its context.
// Does not know what a state holds, except for the context.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <unordered_map>

#include "decode/context.h"
#include "decode/sequence.h"
#include "model/kv_cache.h"

namespace specqd {

// `State` has a member `context`, a shared pointer.
template <class State>
class StateTable {
 public:
  // The state of a sequence. It is made on first use, with a context in the cache.
  State& of(const Sequence& sequence, KvCache& cache) {
    State& state = states_[sequence.key];
    if (state.context == nullptr) {
      state.context = std::make_shared<Context>(cache.create());
      by_context_[state.context.get()] = &state;
    }
    return state;
  }
  // Null: the sequence has none.
  State* find(const Sequence& sequence) {
    const auto found = states_.find(sequence.key);
    return found == states_.end() ? nullptr : &found->second;
  }
  // Throws std::invalid_argument if the context is not of this table.
  State& of(const Context& context) const {
    const auto found = by_context_.find(&context);
    if (found == by_context_.end())
      throw std::invalid_argument("the context belongs to another model");
    return *found->second;
  }
  void release(const Sequence& sequence, KvCache& cache) {
    const auto held = states_.extract(sequence.key);
    if (held.empty()) return;
    by_context_.erase(held.mapped().context.get());
    cache.release(held.mapped().context->slot());
  }

 private:
  std::unordered_map<int64_t, State> states_;  // by the key of a sequence
  std::unordered_map<const Context*, State*> by_context_;
};

}  // namespace specqd
