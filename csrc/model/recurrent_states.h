// The states of recurrent layers. Like a KV cache, they roll back to a smaller length.
//
// A state exists only at anchors, positions that are multiples of 32. A row computes its output
// from the state at the last anchor at or before it and from the rows since that anchor. A ring
// holds these rows by position: the inputs of the convolution, and the keys, updates and decays of
// a delta rule. As in the KV cache, rows past a sequence's length are never read.
//
// A sequence has two anchors. The committed anchor is at or before every position at which a later
// forward may begin. The provisional anchor is newer: it depends on rows that may be rejected, so
// writing a row before it drops it. A sequence also saves states at the ends of pages, from which
// later sequences may begin. States are in slots with reference counts. A slot with several holders
// is not written, so forks and later sequences share it without a copy.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/state_slots.h"

namespace specqd {

constexpr int64_t kSavedPositions = 64;  // states are saved at multiples of this, the ends of pages

// A state that stays unchanged while the sequence grows.
struct SavedState {
  int64_t position;
  SlotPtr slot;
};

// The states and the ring of one sequence.
class SequenceStates {
 public:
  static constexpr int64_t kRingChunks = 4, kRingRows = kRingChunks * kDeltaChunk;
  // The committed slot, the provisional one, the newest one at the end of a page, and a shared one
  // that the same forward has dropped.
  static constexpr int64_t kMostSlots = 4;

  SequenceStates(const StateShape& shape, Memory ring) : shape_(shape), ring_(std::move(ring)) {}

  // Each returns the start of the array of the chunk that holds `position`.
  float* keys(int64_t layer, int64_t position, int64_t key_head) const;
  float* updates(int64_t layer, int64_t position, int64_t value_head) const;
  float* decays(int64_t layer, int64_t position, int64_t value_head) const;
  // The convolution's input of one position, [channels] BF16.
  uint16_t* inputs(int64_t layer, int64_t position) const;

  static constexpr int64_t kNoAnchor = -1;
  // The anchors. The state at anchor 0 is zero and has no slot.
  int64_t committed = 0, provisional = kNoAnchor;
  SlotPtr committed_slot, provisional_slot;
  int64_t length = 0;  // number of rows written
  // Final states at the ends of pages: the last one, and some earlier ones.
  SavedState newest{0, nullptr};
  std::vector<SavedState> earlier;
  // The end of the cached pages that this text shares, where a state will be saved.
  int64_t branch = kNoAnchor;

  // Drops the states that depend on rows from `start` on, which will be replaced.
  void rewind(int64_t start);
  // Whether the state at this end of a page is kept when there are newer ones.
  bool keeps(int64_t position) const;
  void commit_provisional();
  // Begins at a saved state, with no rows since.
  void begin(const SavedState& saved);
  // Shares the slots of another sequence and copies its rows.
  void copy(const SequenceStates& other);
  Memory take_ring() { return std::move(ring_); }

 private:
  uint8_t* chunk(int64_t layer, int64_t position) const;

  StateShape shape_;
  Memory ring_;
};

// One step of a forward over a sequence. It computes the rows [first, last) of a chunk (no rows if
// it only advances an older anchor), then the state at the next anchor, if there is a slot for it.
struct StateStep {
  int64_t anchor, first, last;
  const StateSlot* from;  // the anchor's state; null: zeros
  const StateSlot* to;    // for the next anchor's state; null: it is not computed
};

class RecurrentStates {
 public:
  // Holds the states of at most `capacity` sequences, and at most `most_cached` cached slots.
  RecurrentStates(StateShape shape, int64_t capacity, int64_t most_cached)
      : shape_(shape), capacity_(capacity), slots_(shape, most_cached) {}

  const StateShape& shape() const { return shape_; }
  bool exist() const { return shape_.layers > 0; }
  int64_t sequence_bytes() const;                 // the most that one sequence takes
  int64_t capacity() const { return capacity_; }  // the most sequences with states
  int64_t free() const { return capacity_ - static_cast<int64_t>(held_.size()); }
  StateSlots& slots() { return slots_; }

  bool has(int sequence) const { return held_.contains(sequence); }
  // Gives a sequence states; returns false if there is no room.
  bool reserve(int sequence);
  void release(int sequence);
  // Shares the states of `from`; returns false if there is no room.
  bool fork(int from, int to);

  // The saved state at the end of a page, if the rows before it are final; null: none.
  SlotPtr saved(int sequence, int64_t position) const;
  // The position of the newest saved state; 0: none.
  int64_t last_saved(int sequence) const;
  // Begins a sequence, which has no rows yet, at a state that was saved at the end of a page, as
  // the bytes of its slot. Returns false if there is no room.
  bool restore(int sequence, int64_t position, std::span<const uint8_t> bits);
  // Copies the ring's rows at positions [first, last), which are in one chunk.
  std::vector<uint8_t> row_bits(int sequence, int64_t first, int64_t last) const;
  // Forgets all saved states except the newest, after they were cached.
  void forget_earlier(int sequence);

  // The last position up to this one at which a forward may begin. 0 is always one.
  int64_t last_start(int sequence, int64_t position) const;
  bool can_continue(int sequence, int64_t position) const;
  // Plans a forward over positions [start, end). No later forward may begin before `settled`,
  // except at 0. Until `finish`, the sequences can continue only at 0.
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
