// Slots for the states of recurrent layers. Sequences share slots by reference counts; some slots
// stay cached for later sequences. This file knows no sequences and no tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/memory.h"

namespace specqd {

struct StateShape {
  int64_t channels = 0, kernel_width = 0;  // of the short convolution
  // Heads of the delta rule, whose queries, keys and values are the channels. If these are 0, there
  // is no delta rule, and the state is the convolution's inputs alone.
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t layers = 0;  // recurrent layers; 0: there are no states

  bool operator==(const StateShape&) const = default;
  int64_t head_words() const { return key_dim * value_dim; }
  int64_t earlier_rows() const { return kernel_width - 1; }  // rows before its own that a row reads
  int64_t state_bytes() const;                               // of all layers at one anchor
  int64_t slot_bytes() const;
  int64_t row_bytes() const;  // of one position in the ring, all layers
};

// The state of all layers at one anchor, and the convolution's inputs right before it.
class StateSlot {
 public:
  explicit StateSlot(const StateShape& shape);

  float* state(int64_t layer, int64_t value_head) const;
  // The inputs of the position `back` before the anchor, [channels] BF16; 1 <= back <=
  // earlier_rows.
  uint16_t* inputs(int64_t layer, int64_t back) const;
  std::span<const uint8_t> bits() const { return {memory_.data(), memory_.size()}; }
  void assign(std::span<const uint8_t> bits);

  bool was_shared = false;  // when the last forward was planned

 private:
  StateShape shape_;
  Memory memory_;
};

using SlotPtr = std::shared_ptr<StateSlot>;

// All slots of a cache. A slot is free if it is not cached and no sequence holds it.
class StateSlots {
 public:
  // Keeps at most `most_cached` slots for later sequences.
  StateSlots(StateShape shape, int64_t most_cached) : shape_(shape), most_cached_(most_cached) {}

  // Begins to plan a forward. A sequence may drop a slot that an earlier step of the plan reads.
  // Therefore `take` returns only slots that are free at this call, and a forward writes only slots
  // with one holder. The steps of one sequence run in order, so it may also take a slot that it
  // alone held and has dropped since: `dropped`.
  void begin_forward();
  SlotPtr take(std::span<const StateSlot* const> dropped);
  // Whether the holder of this slot may write it in the forward that is being planned.
  bool is_writable(const SlotPtr& slot) const;

  // Caches the slot under the id of a published page. Drops the least recently used ones beyond
  // `most_cached`.
  void cache(int64_t page, const SlotPtr& slot);
  SlotPtr find(int64_t page);  // null: none
  void forget(int64_t page) { cached_.erase(page); }
  // Drops cached slots until there is room for `wanted` more; returns false if there is none.
  bool make_room(int64_t wanted);

  int64_t cached() const { return static_cast<int64_t>(cached_.size()); }
  int64_t most_cached() const { return most_cached_; }
  int64_t in_use() const;  // slots that sequences hold or that are cached
  int64_t total() const { return static_cast<int64_t>(slots_.size()); }  // slots that take memory

 private:
  struct Cached {
    SlotPtr slot;
    int64_t last_use;
  };

  StateShape shape_;
  int64_t most_cached_, uses_ = 0;
  std::vector<SlotPtr> slots_;
  std::vector<size_t> free_;  // indices of slots_
  std::unordered_map<int64_t, Cached> cached_;
};

}  // namespace specqd
