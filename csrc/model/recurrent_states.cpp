#include "model/recurrent_states.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace specqd {
namespace {

constexpr int64_t kKeptEvery = 1536;  // slots then take about as much memory as keys and values
static_assert(kSavedPositions % kDeltaChunk == 0 && kKeptEvery % kSavedPositions == 0);

// A row reads earlier rows of the ring: one fewer than the kernel width of the convolution.
int64_t most_rows_since(const StateShape& shape) {
  return SequenceStates::kRingRows - shape.earlier_rows();
}

}  // namespace

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
         position % kDeltaChunk * shape_.channels;
}

void SequenceStates::rewind(int64_t start) {
  if (start == 0) {
    committed = 0;
    committed_slot = nullptr;
  }
  if (start < provisional || start == 0) {
    provisional = kNoAnchor;
    provisional_slot = nullptr;
  }
  if (start < newest.position) newest = {0, nullptr};
  std::erase_if(earlier, [start](const SavedState& saved) { return start < saved.position; });
}

bool SequenceStates::keeps(int64_t position) const {
  return position % kKeptEvery == 0 || position == branch;
}

void SequenceStates::commit_provisional() {
  committed = std::exchange(provisional, kNoAnchor);
  committed_slot = std::exchange(provisional_slot, nullptr);
}

void SequenceStates::begin(const SavedState& saved) {
  committed = length = saved.position;
  committed_slot = saved.slot;
  newest = saved;
  const auto bytes = static_cast<size_t>(shape_.channels) * sizeof(uint16_t);
  for (int64_t layer = 0; layer < shape_.layers; ++layer)
    for (int64_t back = 1; back <= shape_.earlier_rows(); ++back)
      std::memcpy(inputs(layer, length - back), saved.slot->inputs(layer, back), bytes);
}

void SequenceStates::copy(const SequenceStates& other) {
  committed = other.committed;
  committed_slot = other.committed_slot;
  provisional = other.provisional;
  provisional_slot = other.provisional_slot;
  length = other.length;
  newest = other.newest;
  const auto bytes = static_cast<size_t>(kDeltaChunk * shape_.row_bytes());
  const int64_t first = std::max<int64_t>(committed - shape_.earlier_rows(), 0);
  for (int64_t at = first / kDeltaChunk * kDeltaChunk; at < length; at += kDeltaChunk)
    std::memcpy(chunk(0, at), other.chunk(0, at), bytes);
}

int64_t RecurrentStates::sequence_bytes() const {
  return SequenceStates::kMostSlots * shape_.slot_bytes() +
         SequenceStates::kRingRows * shape_.row_bytes();
}

bool RecurrentStates::reserve(int sequence) {
  if (!exist() || has(sequence)) return true;
  if (free() == 0) return false;
  if (spare_rings_.empty())
    spare_rings_.emplace_back(static_cast<size_t>(SequenceStates::kRingRows * shape_.row_bytes()));
  held_.emplace(sequence, SequenceStates(shape_, std::move(spare_rings_.back())));
  spare_rings_.pop_back();
  return true;
}

void RecurrentStates::release(int sequence) {
  auto held = held_.extract(sequence);
  if (!held.empty()) spare_rings_.push_back(held.mapped().take_ring());
}

bool RecurrentStates::fork(int from, int to) {
  if (!has(from)) return true;
  if (!reserve(to)) return false;
  of(to).copy(of(from));
  return true;
}

SlotPtr RecurrentStates::saved(int sequence, int64_t position) const {
  const auto found = held_.find(sequence);
  if (found == held_.end() || position > found->second.length) return nullptr;
  const SequenceStates& held = found->second;
  if (held.newest.position == position) return held.newest.slot;
  if (held.provisional == position) return held.provisional_slot;
  const auto saved = std::ranges::find(held.earlier, position, &SavedState::position);
  return saved == held.earlier.end() ? nullptr : saved->slot;
}

int64_t RecurrentStates::last_saved(int sequence) const {
  return has(sequence) ? held_.at(sequence).newest.position : 0;
}

bool RecurrentStates::restore(int sequence, int64_t position, std::span<const uint8_t> bits) {
  if (!reserve(sequence)) return false;
  slots_.begin_forward();
  const SlotPtr slot = slots_.take({});
  slot->assign(bits);
  of(sequence).begin({position, slot});
  return true;
}

std::vector<uint8_t> RecurrentStates::row_bits(int sequence, int64_t first, int64_t last) const {
  const SequenceStates& held = held_.at(sequence);
  std::vector<uint8_t> bits;
  const auto add = [&](const auto* from, int64_t count) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(from);
    bits.insert(bits.end(), bytes, bytes + count * static_cast<int64_t>(sizeof(*from)));
  };
  for (int64_t layer = 0; layer < shape_.layers; ++layer)
    for (int64_t at = first; at < last; ++at) {
      const int64_t row = at % kDeltaChunk;
      add(held.inputs(layer, at), shape_.channels);
      for (int64_t i = 0; i < shape_.key_heads * shape_.key_dim; ++i)
        add(held.keys(layer, at, 0) + i * kDeltaChunk + row, 1);
      for (int64_t head = 0; head < shape_.value_heads; ++head) {
        add(held.updates(layer, at, head) + row * shape_.value_dim, shape_.value_dim);
        add(held.decays(layer, at, head) + row, 1);
      }
    }
  return bits;
}

void RecurrentStates::forget_earlier(int sequence) {
  if (has(sequence)) of(sequence).earlier.clear();
}

int64_t RecurrentStates::last_start(int sequence, int64_t position) const {
  if (!exist()) return position;
  const auto found = held_.find(sequence);
  if (found == held_.end()) return 0;
  const int64_t last = std::min(position, found->second.length);
  return found->second.committed <= last ? last : 0;
}

bool RecurrentStates::can_continue(int sequence, int64_t position) const {
  return last_start(sequence, position) == position;
}

void RecurrentStates::begin_forward() {
  planned_.clear();
  slots_.begin_forward();
}

void RecurrentStates::finish() {
  for (const auto& [sequence, length] : planned_) of(sequence).length = length;
  planned_.clear();
}

int64_t RecurrentStates::num_earlier() const {
  int64_t count = 0;
  for (const auto& [sequence, held] : held_) count += std::ssize(held.earlier);
  return count;
}

// Saves the committed state, at the end of a page.
void RecurrentStates::save(SequenceStates& held) {
  held.newest = {held.committed, held.committed_slot};
  if (held.keeps(held.committed) && slots_.make_room(num_earlier() + 1))
    held.earlier.push_back(held.newest);
}

void RecurrentStates::plan(int sequence, int64_t start, int64_t end, int64_t settled,
                           std::vector<StateStep>& steps) {
  assert(can_continue(sequence, start));
  SequenceStates& held = of(sequence);
  const StateSlot* const before[] = {held.committed_slot.get(), held.provisional_slot.get(),
                                     held.newest.slot.get()};
  held.rewind(start);
  held.length = 0;
  planned_.emplace_back(sequence, end);
  // The ring keeps the rows since the committed anchor.
  const auto must_commit = [&](int64_t anchor) {
    return anchor <= settled || end - held.committed > most_rows_since(shape_);
  };
  const int64_t last_page = std::min(settled, end - 1) / kSavedPositions * kSavedPositions;
  const auto save_final = [&] {
    if (held.committed == last_page || (held.committed <= settled && held.keeps(held.committed)))
      save(held);
  };
  if (held.provisional != SequenceStates::kNoAnchor && must_commit(held.provisional)) {
    held.commit_provisional();
    save_final();
  }
  bool is_provisional = held.provisional != SequenceStates::kNoAnchor;
  int64_t anchor = is_provisional ? held.provisional : held.committed;
  const StateSlot* from = (is_provisional ? held.provisional_slot : held.committed_slot).get();
  for (;; anchor += kDeltaChunk) {
    const int64_t next = anchor + kDeltaChunk;
    steps.push_back({anchor, std::max(anchor, start), std::min(next, end), from, nullptr});
    if (next >= end) return;
    is_provisional = is_provisional || !must_commit(next);
    SlotPtr& slot = is_provisional ? held.provisional_slot : held.committed_slot;
    if (slot.get() != from || !slots_.is_writable(slot)) slot = slots_.take(before);
    steps.back().to = from = slot.get();
    (is_provisional ? held.provisional : held.committed) = next;
    if (!is_provisional) save_final();
  }
}

}  // namespace specqd
