#include "model/recurrent_states.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace specqd {
namespace {

// A row reads as many earlier rows of the ring as the convolution has taps, less one.
int64_t most_rows_since(const StateShape& shape) {
  return SequenceStates::kRingRows - (shape.taps - 1);
}

}  // namespace

int64_t StateShape::state_bytes() const {
  return layers * value_heads * head_words() * static_cast<int64_t>(sizeof(float));
}

int64_t StateShape::row_bytes() const {
  const int64_t floats = key_heads * key_dim + value_heads * (value_dim + 1);
  return layers * (floats * static_cast<int64_t>(sizeof(float)) +
                   channels() * static_cast<int64_t>(sizeof(uint16_t)));
}

int64_t StateShape::sequence_bytes() const {
  return 2 * state_bytes() + SequenceStates::kRingRows * row_bytes();
}

SequenceStates::SequenceStates(const StateShape& shape)
    : shape_(shape),
      states_(static_cast<size_t>(2 * shape.state_bytes())),
      ring_(static_cast<size_t>(kRingRows * shape.row_bytes())) {}

float* SequenceStates::state(int64_t slot, int64_t layer, int64_t value_head) const {
  const int64_t heads = (slot * shape_.layers + layer) * shape_.value_heads + value_head;
  return reinterpret_cast<float*>(states_.data()) + heads * shape_.head_words();
}

// The ring is [chunk][layer][keys, updates, decays, inputs], so that a short sequence touches few
// pages of memory.
uint8_t* SequenceStates::chunk(int64_t layer, int64_t position) const {
  const int64_t bytes = kDeltaChunk * shape_.row_bytes();
  return ring_.data() + position / kDeltaChunk % kRingChunks * bytes +
         layer * (bytes / shape_.layers);
}

float* SequenceStates::keys(int64_t layer, int64_t position, int64_t key_head) const {
  return reinterpret_cast<float*>(chunk(layer, position)) + key_head * shape_.key_dim * kDeltaChunk;
}

float* SequenceStates::updates(int64_t layer, int64_t position, int64_t value_head) const {
  return keys(layer, position, shape_.key_heads) + value_head * kDeltaChunk * shape_.value_dim;
}

float* SequenceStates::decays(int64_t layer, int64_t position, int64_t value_head) const {
  return updates(layer, position, shape_.value_heads) + value_head * kDeltaChunk;
}

uint16_t* SequenceStates::inputs(int64_t layer, int64_t position) const {
  return reinterpret_cast<uint16_t*>(decays(layer, position, shape_.value_heads)) +
         position % kDeltaChunk * shape_.channels();
}

void SequenceStates::copy(const SequenceStates& other) {
  committed_slot = other.committed_slot;
  committed = other.committed;
  provisional = other.provisional;
  length = other.length;
  const size_t bytes = states_.size() / 2;
  for (const int64_t slot : {int64_t{0}, int64_t{1}}) {
    const bool is_held = slot == committed_slot ? committed > 0 : provisional != kNoAnchor;
    const size_t at = static_cast<size_t>(slot) * bytes;
    if (is_held) std::memcpy(states_.data() + at, other.states_.data() + at, bytes);
  }
  const auto chunks = std::min<int64_t>((length + kDeltaChunk - 1) / kDeltaChunk, kRingChunks);
  std::memcpy(ring_.data(), other.ring_.data(),
              ring_.size() / kRingChunks * static_cast<size_t>(chunks));
}

bool RecurrentStates::reserve(int sequence) {
  if (!exist() || has(sequence)) return true;
  if (free() == 0) return false;
  if (spare_.empty()) {
    held_.emplace(sequence, shape_);
    return true;
  }
  SequenceStates states = std::move(spare_.back());
  spare_.pop_back();
  states.committed = states.length = 0;
  states.provisional = SequenceStates::kNoAnchor;
  held_.emplace(sequence, std::move(states));
  return true;
}

void RecurrentStates::release(int sequence) {
  auto held = held_.extract(sequence);
  if (!held.empty()) spare_.push_back(std::move(held.mapped()));
}

bool RecurrentStates::fork(int from, int to) {
  if (!has(from)) return true;
  if (!reserve(to)) return false;
  of(to).copy(of(from));
  return true;
}

bool RecurrentStates::can_continue(int sequence, int64_t position) const {
  if (!exist() || position == 0) return true;
  const auto found = held_.find(sequence);
  if (found == held_.end()) return false;
  return found->second.committed <= position && position <= found->second.length;
}

void RecurrentStates::plan(int sequence, int64_t start, int64_t end, int64_t settled,
                           std::vector<StateStep>& steps) {
  SequenceStates& held = of(sequence);
  assert(can_continue(sequence, start));
  if (start == 0) held.committed = 0;
  if (start < held.provisional || start == 0) held.provisional = SequenceStates::kNoAnchor;
  held.length = end;
  // The ring keeps the rows since the committed anchor.
  const auto must_commit = [&](int64_t anchor) {
    return anchor <= settled || end - held.committed > most_rows_since(shape_);
  };
  const auto commit_provisional = [&] {
    held.committed = std::exchange(held.provisional, SequenceStates::kNoAnchor);
    held.committed_slot = 1 - held.committed_slot;
  };
  bool is_provisional = held.provisional != SequenceStates::kNoAnchor;
  if (is_provisional && must_commit(held.provisional)) {
    commit_provisional();
    is_provisional = false;
  }
  int64_t anchor = is_provisional ? held.provisional : held.committed;
  for (;; anchor += kDeltaChunk) {
    const int64_t slot = is_provisional ? 1 - held.committed_slot : held.committed_slot;
    const int64_t from = anchor == 0 ? StateStep::kZeros : slot;
    const int64_t next = anchor + kDeltaChunk;
    StateStep step{anchor, std::max(anchor, start), std::min(next, end), from, StateStep::kNowhere};
    if (next >= end) {
      steps.push_back(step);
      return;
    }
    if (must_commit(next)) {
      step.to = slot;
      if (is_provisional) commit_provisional();
      held.committed = next;
      is_provisional = false;
    } else {
      step.to = 1 - held.committed_slot;
      held.provisional = next;
      is_provisional = true;
    }
    steps.push_back(step);
  }
}

}  // namespace specqd
