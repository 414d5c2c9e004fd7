// The states of recurrent layers beside a KV cache, so that they roll back as a length.
//
// A state exists only at anchors, positions that are multiples of 32. A row computes its output
// from the state at the anchor at or below it and from the rows since, which lie in a ring by
// position: convolution inputs; keys, updates and decays of a delta rule. Rows past a sequence's
// length are never read, as in the KV cache.
//
// A sequence works with two anchors. The committed one stays at or below every position that a
// later forward may begin at. The provisional one is newer; it was made of rows that may be
// rejected, so a row that is written below it drops it. Beside these a sequence saves states at
// ends of pages, which later sequences may begin with. States lie in slots with reference counts: a
// slot that others hold is not written, so forks and later sequences share it without a copy.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/state_slots.h"

namespace specqd {

constexpr int64_t kSavedPositions = 64;  // states are saved at multiples, the ends of pages

// A state that stays as it is while the sequence goes on.
struct SavedState {
  int64_t position;
  SlotPtr slot;
};

// The states and the ring of one sequence.
class SequenceStates {
 public:
  static constexpr int64_t kRingChunks = 4, kRingRows = kRingChunks * kDeltaChunk;
  // Committed, provisional, the newest at the end of a page, and a shared one that was dropped in
  // the same forward.
  static constexpr int64_t kMostSlots = 4;

  SequenceStates(const StateShape& shape, Memory ring) : shape_(shape), ring_(std::move(ring)) {}

  // The start of the chunk that holds `position`.
  float* keys(int64_t layer, int64_t position, int64_t key_head) const;
  float* updates(int64_t layer, int64_t position, int64_t value_head) const;
  float* decays(int64_t layer, int64_t position, int64_t value_head) const;
  // The convolution's input of one position, [channels] BF16.
  uint16_t* inputs(int64_t layer, int64_t position) const;

  static constexpr int64_t kNoAnchor = -1;
  // Anchor 0 is a state of zeros, which has no slot.
  int64_t committed = 0, provisional = kNoAnchor;
  SlotPtr committed_slot, provisional_slot;
  int64_t length = 0;  // rows that were written
  // Final states at ends of pages: the last one, and some earlier ones.
  SavedState newest{0, nullptr};
  std::vector<SavedState> earlier;
  int64_t branch = kNoAnchor;  // where the text leaves one that is cached without a state there

  // Drops what rows from `start` on will replace.
  void rewind(int64_t start);
  // Whether a state at the end of a page is kept while there are newer ones.
  bool keeps(int64_t position) const;
  void commit_provisional();
  // Begins at a saved state, without rows.
  void begin(const SavedState& saved);
  // Shares the slots of another sequence and copies its rows.
  void copy(const SequenceStates& other);
  Memory take_ring() { return std::move(ring_); }

 private:
  uint8_t* chunk(int64_t layer, int64_t position) const;

  StateShape shape_;
  Memory ring_;
};

// One step of a forward over a sequence: the rows [first, last) of a chunk (none where an older
// anchor is advanced), then the next anchor's state, if there is a slot for it.
struct StateStep {
  int64_t anchor, first, last;
  const StateSlot* from;  // the anchor's state; null: zeros
  const StateSlot* to;    // null: not made
};

class RecurrentStates {
 public:
  // Holds states of at most `capacity` sequences, and at most `most_cached` slots beside theirs.
  RecurrentStates(StateShape shape, int64_t capacity, int64_t most_cached)
      : shape_(shape), capacity_(capacity), slots_(shape, most_cached) {}

  const StateShape& shape() const { return shape_; }
  bool exist() const { return shape_.layers > 0; }
  int64_t sequence_bytes() const;                 // most that one sequence takes
  int64_t capacity() const { return capacity_; }  // most sequences with states
  int64_t free() const { return capacity_ - static_cast<int64_t>(held_.size()); }
  StateSlots& slots() { return slots_; }

  bool has(int sequence) const { return held_.contains(sequence); }
  // Gives a sequence states; returns false if there is no room.
  bool reserve(int sequence);
  void release(int sequence);
  // Shares the states of `from`; returns false if there is no room.
  bool fork(int from, int to);

  // The state of a sequence at the end of a page, where the rows before it are final; null: none.
  SlotPtr saved(int sequence, int64_t position) const;
  // The position of the newest saved state; 0: none.
  int64_t last_saved(int sequence) const;
  // Copies what the ring keeps of the positions [first, last), of one chunk.
  std::vector<uint8_t> row_bits(int sequence, int64_t first, int64_t last) const;
  // Forgets saved states but the newest, after they were cached.
  void forget_earlier(int sequence);

  // Whether a forward may begin at `position`: true for 0.
  bool can_continue(int sequence, int64_t position) const;
  // Plans a forward over positions [start, end). No later one begins below `settled`, except at 0.
  // Until `finish`, the sequences can continue nowhere but at 0.
  void begin_forward();
  void plan(int sequence, int64_t start, int64_t end, int64_t settled,
            std::vector<StateStep>& steps);
  void finish();
  SequenceStates& of(int sequence) { return held_.at(sequence); }

 private:
  void save(SequenceStates& held);
  int64_t num_earlier() const;

  StateShape shape_;
  int64_t capacity_;
  StateSlots slots_;
  std::unordered_map<int, SequenceStates> held_;
  std::vector<Memory> spare_rings_;
  std::vector<std::pair<int, int64_t>> planned_;  // sequences, and their lengths afterwards
};

}  // namespace specqd
