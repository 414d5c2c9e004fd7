#include "model/state_slots.h"

#include <algorithm>
#include <cassert>

namespace specqd {

int64_t StateShape::state_bytes() const {
  return layers * value_heads * head_words() * static_cast<int64_t>(sizeof(float));
}

int64_t StateShape::slot_bytes() const {
  return state_bytes() +
         layers * earlier_rows() * channels * static_cast<int64_t>(sizeof(uint16_t));
}

int64_t StateShape::row_bytes() const {
  const int64_t floats = key_heads * key_dim + value_heads * (value_dim + 1);
  return layers * (floats * static_cast<int64_t>(sizeof(float)) +
                   channels * static_cast<int64_t>(sizeof(uint16_t)));
}

StateSlot::StateSlot(const StateShape& shape)
    : shape_(shape), memory_(static_cast<size_t>(shape.slot_bytes())) {}

float* StateSlot::state(int64_t layer, int64_t value_head) const {
  return reinterpret_cast<float*>(memory_.data()) +
         (layer * shape_.value_heads + value_head) * shape_.head_words();
}

uint16_t* StateSlot::inputs(int64_t layer, int64_t back) const {
  return reinterpret_cast<uint16_t*>(memory_.data() + shape_.state_bytes()) +
         (layer * shape_.earlier_rows() + back - 1) * shape_.channels;
}

void StateSlot::assign(std::span<const uint8_t> bits) {
  assert(bits.size() == memory_.size());
  std::ranges::copy(bits, memory_.data());
}

void StateSlots::begin_forward() {
  free_.clear();
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i]->was_shared = slots_[i].use_count() > 2;
    if (slots_[i].use_count() == 1) free_.push_back(i);
  }
}

bool StateSlots::is_writable(const SlotPtr& slot) const {
  return slot != nullptr && !slot->was_shared && slot.use_count() == 2;
}

SlotPtr StateSlots::take(std::span<const StateSlot* const> dropped) {
  for (const SlotPtr& slot : slots_)
    if (slot.use_count() == 1 && !slot->was_shared &&
        std::ranges::find(dropped, slot.get()) != dropped.end())
      return slot;
  if (free_.empty()) {
    slots_.push_back(std::make_shared<StateSlot>(shape_));
    return slots_.back();
  }
  const size_t index = free_.back();
  free_.pop_back();
  return slots_[index];
}

void StateSlots::cache(int64_t page, const SlotPtr& slot) {
  if (find(page) == nullptr && make_room(1)) cached_[page] = {slot, ++uses_};
}

SlotPtr StateSlots::find(int64_t page) {
  const auto found = cached_.find(page);
  if (found == cached_.end()) return nullptr;
  found->second.last_use = ++uses_;
  return found->second.slot;
}

bool StateSlots::make_room(int64_t wanted) {
  while (cached() + wanted > most_cached_) {
    if (cached_.empty()) return false;
    cached_.erase(std::ranges::min_element(
        cached_, {}, [](const auto& entry) { return entry.second.last_use; }));
  }
  return true;
}

int64_t StateSlots::in_use() const {
  return std::ranges::count_if(slots_, [](const SlotPtr& slot) { return slot.use_count() > 1; });
}

}  // namespace specqd
