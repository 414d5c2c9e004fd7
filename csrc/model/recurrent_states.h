// The states of recurrent layers beside a KV cache, so that they roll back as a length.
//
// A state exists only at anchors, positions that are multiples of 32. A row computes its output
// from the state at the anchor at or below it and from the rows since, which lie in a ring by
// position: convolution inputs, keys, updates and decays. Rows past a sequence's length are never
// read, as in the KV cache.
//
// A sequence holds two anchors. The committed one stays at or below every position that a later
// forward may begin at. The provisional one is newer; it was made of rows that may be rejected, so
// a row that is written below it drops it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/memory.h"

namespace specqd {

struct StateShape {
  int64_t layers = 0;  // recurrent ones; 0: there are no states
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t taps = 0;  // of the short convolution

  // Channels of the convolution: queries, keys, values.
  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t head_words() const { return key_dim * value_dim; }
  int64_t state_bytes() const;     // of all layers at one anchor
  int64_t row_bytes() const;       // of one position in the ring, all layers
  int64_t sequence_bytes() const;  // most that one sequence takes
};

// The memory of one sequence: two states, and a ring of rows.
class SequenceStates {
 public:
  static constexpr int64_t kRingChunks = 4, kRingRows = kRingChunks * kDeltaChunk;

  explicit SequenceStates(const StateShape& shape);

  float* state(int64_t slot, int64_t layer, int64_t value_head) const;
  // The start of the chunk that holds `position`.
  float* keys(int64_t layer, int64_t position, int64_t key_head) const;
  float* updates(int64_t layer, int64_t position, int64_t value_head) const;
  float* decays(int64_t layer, int64_t position, int64_t value_head) const;
  // The convolution's input of one position, [channels] BF16.
  uint16_t* inputs(int64_t layer, int64_t position) const;

  // Anchors of the two slots; kNoAnchor: none. Anchor 0 is a state of zeros, which is not stored.
  static constexpr int64_t kNoAnchor = -1;
  int64_t committed_slot = 0, committed = 0, provisional = kNoAnchor;
  int64_t length = 0;  // rows that were written

  void copy(const SequenceStates& other);

 private:
  uint8_t* chunk(int64_t layer, int64_t position) const;

  StateShape shape_;
  Memory states_, ring_;
};

// One step of a forward over a sequence: the rows [first, last) of a chunk (none where an older
// anchor is advanced), then the next anchor's state, if `to` is a slot.
struct StateStep {
  int64_t anchor, first, last;
  int64_t from;  // slot of the anchor's state; kZeros
  int64_t to;    // slot of the next one's; kNowhere
  static constexpr int64_t kZeros = -1, kNowhere = -1;
};

class RecurrentStates {
 public:
  RecurrentStates(StateShape shape, int64_t capacity) : shape_(shape), capacity_(capacity) {}

  const StateShape& shape() const { return shape_; }
  bool exist() const { return shape_.layers > 0; }
  int64_t capacity() const { return capacity_; }  // most sequences with states
  int64_t free() const { return capacity_ - static_cast<int64_t>(held_.size()); }

  bool has(int sequence) const { return held_.contains(sequence); }
  // Gives a sequence states; returns false if there is no room.
  bool reserve(int sequence);
  void release(int sequence);
  // Copies the states of `from`; returns false if there is no room.
  bool fork(int from, int to);

  // Whether a forward may begin at `position`: true for 0.
  bool can_continue(int sequence, int64_t position) const;
  // Plans a forward over positions [start, end). No later one begins below `settled`, except at 0.
  void plan(int sequence, int64_t start, int64_t end, int64_t settled,
            std::vector<StateStep>& steps);
  SequenceStates& of(int sequence) { return held_.at(sequence); }

 private:
  StateShape shape_;
  int64_t capacity_;
  std::unordered_map<int, SequenceStates> held_;
  std::vector<SequenceStates> spare_;  // memory of released sequences
};

}  // namespace specqd
