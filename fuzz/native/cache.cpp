// Fuzzes the KV cache and its recurrent states, and compares them with a model of what they must
// hold.
//
// Sequences are created, forked, drafted, rolled back, published, started from cached prefixes and
// released, in batches. Each position holds a stamp that depends on all tokens up to it, on the
// client's salt, and on which of these tokens a draft wrote. Before a forward writes its own
// stamps, it checks each stamp that the decoder's rows could read.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "check.h"
#include "model/kv_cache.h"

namespace specqd {
namespace {

constexpr int64_t kLongest = 900;  // positions of a sequence
constexpr int64_t kMostSequences = 6, kMostDrafted = 64, kMostOperations = 200;
constexpr KvLayer kLayer{.kv_heads = 1, .head_dim = kBlock, .value_dim = kPanel};
constexpr StateShape kStates{.channels = 4,
                             .kernel_width = 4,
                             .key_heads = 1,
                             .value_heads = 1,
                             .key_dim = 2,
                             .value_dim = 16,
                             .layers = 2};

uint16_t stamp_after(uint16_t before, int32_t token, bool is_draft) {
  uint32_t x = (before * 31u + static_cast<uint32_t>(token) * 2u + (is_draft ? 1u : 0u)) + 1u;
  x *= 0x9e3779b1u;
  return static_cast<uint16_t>(x >> 16 ^ x >> 3);
}

// The position to which each word of a page belongs. An attention head of dimension 32 is one tile
// of a panel.
std::vector<int64_t> positions_of_words() {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < kLayer.key_words(); ++i)
    positions.push_back(i / kTileWeights * kPanel + i % (2 * kPanel) / 2);
  for (int64_t i = 0; i < kLayer.value_words(); ++i)
    positions.push_back(i / kTileWeights * kBlock + i % kTileWeights / (2 * kPanel) * 2 + i % 2);
  return positions;
}

struct Modelled {
  uint64_t salt;
  std::vector<int32_t> tokens;   // accepted or guessed
  std::vector<uint16_t> stamps;  // by position: what the cache must hold
  int64_t exact = 0;             // number of positions before the draft's rows
  int64_t settled = 0;           // forwards begin at or after this position, or at 0
  int64_t released = 0;          // number of first positions whose pages were released
  uint16_t stamp_before(int64_t position) const {
    return position == 0 ? static_cast<uint16_t>(salt) : stamps[static_cast<size_t>(position - 1)];
  }
};

class CacheFuzzer {
 public:
  explicit CacheFuzzer(FuzzedDataProvider& given)
      : given_(given),
        has_states_(given.ConsumeBool()),
        pages_(given.ConsumeIntegralInRange<int64_t>(1, 40)),
        cache_({{kLayer}}, pages_, has_states_ ? kStates : StateShape{},
               given.ConsumeIntegralInRange<int64_t>(1, kMostSequences),
               given.ConsumeIntegralInRange<int64_t>(0, 6), false) {}

  void run() {
    for (int64_t i = 0; i < kMostOperations && given_.remaining_bytes() > 0; ++i) {
      operate();
      check_pages();
    }
    for (const auto& [id, sequence] : sequences_) check_text(id, sequence);
    while (!sequences_.empty()) release(sequences_.begin()->first);
    CHECK(cache_.free_pages() == cache_.total_pages());
    CHECK(cache_.states().free() == cache_.states().capacity());
    CHECK(cache_.states().slots().in_use() == cache_.states().slots().cached());
  }

 private:
  void operate() {
    if (sequences_.empty()) return begin();
    const int id = std::next(sequences_.begin(),
                             given_.ConsumeIntegralInRange<int64_t>(0, std::ssize(sequences_) - 1))
                       ->first;
    switch (given_.ConsumeIntegralInRange(0, 9)) {
      case 0:
        return begin();
      case 1:
        return fork(id);
      case 2:
        return release(id);
      case 3:
        return publish(id);
      case 4:
        return roll_back(id);
      case 5:
        return release_behind(id);
      case 6:
        return check_text(id, sequences_.at(id));
      default:
        return forward();
    }
  }

  void begin() {
    if (std::ssize(sequences_) == kMostSequences) return;
    const int id = cache_.create();
    Modelled& sequence = sequences_[id];
    sequence.salt = given_.ConsumeIntegralInRange<uint64_t>(0, 1);
    std::vector<int32_t> tokens;  // mostly a text that another sequence may have published
    while (std::ssize(tokens) < kLongest && given_.ConsumeBool())
      tokens.insert(tokens.end(), given_.ConsumeIntegralInRange<size_t>(1, 200), run_token());
    if (tokens.empty()) return;
    const int64_t held = cache_.attach_prefix(id, tokens, sequence.salt);
    CHECK(held % kPagePositions == 0 && held < std::ssize(tokens));
    for (int64_t i = 0; i < held; ++i) write_stamp(sequence, i, tokens[i], false);
    sequence.exact = sequence.settled = held;
    check_text(id, sequence);
  }

  void fork(int id) {
    if (std::ssize(sequences_) == kMostSequences) return;
    const Modelled& from = sequences_.at(id);
    const int64_t length = given_.ConsumeIntegralInRange<int64_t>(from.settled, from.exact);
    Modelled copy = from;
    cut(copy, length);
    sequences_[cache_.fork(id, length)] = copy;
  }

  void release(int id) {
    cache_.release(id);
    sequences_.erase(id);
  }

  void publish(int id) {
    Modelled& sequence = sequences_.at(id);
    sequence.settled = given_.ConsumeIntegralInRange<int64_t>(sequence.settled, sequence.exact);
    const auto accepted = static_cast<size_t>(sequence.settled);
    cache_.publish(id, std::span(sequence.tokens).first(accepted), sequence.salt);
  }

  void roll_back(int id) {
    Modelled& sequence = sequences_.at(id);
    if (!has_states_) sequence.settled = sequence.released;  // pages alone allow any rollback
    cut(sequence, given_.ConsumeIntegralInRange<int64_t>(sequence.settled, sequence.exact));
  }

  void release_behind(int id) {
    Modelled& sequence = sequences_.at(id);
    const int64_t position = given_.ConsumeIntegralInRange<int64_t>(0, sequence.settled);
    cache_.release_behind(id, position);
    sequence.released = std::max(sequence.released, position / kPagePositions * kPagePositions);
  }

  struct Part {
    int id;
    int64_t start, end;
    std::vector<StateStep> steps = {};
  };

  // One forward of some sequences: an exact one, or one of a draft, whose rows follow the exact
  // ones.
  void forward() {
    const bool is_draft = given_.ConsumeBool();
    std::vector<Part> parts = choose_parts(is_draft);
    if (has_states_) cache_.states().begin_forward();
    for (Part& part : parts) {
      int64_t& settled = sequences_.at(part.id).settled;
      // The rows of a prompt are accepted before they are written; those of a proposal are not.
      const auto unsettled = given_.ConsumeIntegralInRange<int64_t>(0, kMostDrafted + 1);
      if (!is_draft) settled = std::max(settled, part.end - unsettled);
      if (!has_states_) continue;
      cache_.states().plan(part.id, part.start, part.end, settled, part.steps);
      for (const StateStep& step : part.steps)
        if (step.to != nullptr) slots_.insert(step.to);
    }
    if (given_.ConsumeBool()) std::ranges::reverse(parts);  // threads may take them in any order
    for (const Part& part : parts) write_rows(part, is_draft);
    if (has_states_) cache_.states().finish();
    check_slots();
  }

  // Chooses the rows of some sequences and makes their pages writable.
  std::vector<Part> choose_parts(bool is_draft) {
    std::vector<Part> parts;
    for (auto& [id, sequence] : sequences_) {
      if (given_.ConsumeBool()) continue;
      int64_t start = is_draft ? std::ssize(sequence.stamps) : sequence.exact;
      const int64_t count = given_.ConsumeIntegralInRange<int64_t>(1, is_draft ? 8 : 200);
      if (!cache_.states().can_continue(id, start)) {
        CHECK(!cache_.states().has(id));  // there was no room for its states
        if (is_draft) continue;
        start = 0;
      }
      const int64_t end = std::max(start, sequence.exact) + count;
      if (end > (is_draft ? sequence.settled + kMostDrafted : kLongest)) continue;
      if (!make_writable(id, start, end)) continue;
      if (start == 0) sequence.released = 0;
      parts.push_back({id, start, end});
    }
    return parts;
  }

  bool make_writable(int id, int64_t start, int64_t end) {
    const int64_t free = cache_.free_pages();
    const bool can_hold = cache_.states().has(id) || cache_.states().free() > 0 || !has_states_;
    const bool done = cache_.make_writable(id, start, end);
    const int64_t most = (end - 1) / kPagePositions - start / kPagePositions + 1;
    CHECK(done || !can_hold || free < most);
    CHECK(done || free == cache_.free_pages());
    return done;
  }

  // Writes the rows of a part: known tokens first, then new ones.
  void write_rows(const Part& part, bool is_draft) {
    const auto& [id, start, end, steps] = part;
    Modelled& sequence = sequences_.at(id);
    std::vector<int32_t> tokens = sequence.tokens;
    const int32_t token = run_token();
    tokens.resize(std::max<size_t>(tokens.size(), static_cast<size_t>(end)), token);
    // Verification writes the drafted tokens or others.
    if (!is_draft && given_.ConsumeBool())
      std::fill(tokens.begin() + std::max(start, sequence.exact), tokens.end(), token);
    if (start > 0) check_position(id, sequence, start - 1);
    sequence.tokens.resize(static_cast<size_t>(start));
    sequence.stamps.resize(static_cast<size_t>(start));
    CHECK(steps.empty() == !has_states_);
    for (const StateStep& step : steps) run_step(id, sequence, step, tokens, is_draft);
    for (int64_t i = start; i < end && !has_states_; ++i)
      write_stamp(sequence, i, tokens[static_cast<size_t>(i)], is_draft);
    CHECK(std::ssize(sequence.stamps) == end);
    write_pages(id, sequence, start, end);
    if (!is_draft) sequence.exact = end;
  }

  void run_step(int id, Modelled& sequence, const StateStep& step,
                const std::vector<int32_t>& tokens, bool is_draft) {
    const SequenceStates& states = cache_.states().of(id);
    for (int64_t layer = 0; layer < kStates.layers; ++layer)
      if (step.from != nullptr) check_slot(*step.from, sequence, layer, step.anchor);
    CHECK((step.from == nullptr) == (step.anchor == 0));
    for (int64_t i = step.first; i < step.last; ++i) {
      for (int64_t layer = 0; layer < kStates.layers; ++layer) {
        for (int64_t back = 1; back <= std::min(i, kStates.earlier_rows()); ++back)
          CHECK(states.inputs(layer, i - back)[layer] == sequence.stamp_before(i - back + 1));
        for (int64_t row = step.anchor; row < i; ++row) check_row(states, sequence, layer, row);
      }
      write_stamp(sequence, i, tokens[static_cast<size_t>(i)], is_draft);
      for (int64_t layer = 0; layer < kStates.layers; ++layer)
        write_row(states, sequence, layer, i);
    }
    if (step.to == nullptr) return;
    const int64_t next = step.anchor + kDeltaChunk;
    for (int64_t layer = 0; layer < kStates.layers; ++layer) {
      for (int64_t row = step.anchor; row < next; ++row) check_row(states, sequence, layer, row);
      std::fill_n(step.to->state(layer, 0), kStates.head_words(), sequence.stamp_before(next));
      for (int64_t back = 1; back <= kStates.earlier_rows(); ++back)
        std::copy_n(states.inputs(layer, next - back), kStates.channels,
                    step.to->inputs(layer, back));
    }
  }

  void check_slot(const StateSlot& slot, const Modelled& sequence, int64_t layer, int64_t anchor) {
    const float stamp = sequence.stamp_before(anchor);
    const float* const state = slot.state(layer, 0);
    CHECK(std::all_of(state, state + kStates.head_words(), [&](float x) { return x == stamp; }));
    for (int64_t back = 1; back <= kStates.earlier_rows(); ++back)
      CHECK(slot.inputs(layer, back)[layer] == sequence.stamp_before(anchor - back + 1));
  }

  void check_row(const SequenceStates& states, const Modelled& sequence, int64_t layer,
                 int64_t row) {
    const uint16_t stamp = sequence.stamps[static_cast<size_t>(row)];
    const int64_t at = row % kDeltaChunk;
    CHECK(states.inputs(layer, row)[layer] == stamp);
    CHECK(states.keys(layer, row, 0)[kDeltaChunk + at] == stamp);
    CHECK(states.updates(layer, row, 0)[at * kStates.value_dim + 15] == stamp);
    CHECK(states.decays(layer, row, 0)[at] == stamp);
  }

  void write_row(const SequenceStates& states, const Modelled& sequence, int64_t layer,
                 int64_t row) {
    const uint16_t stamp = sequence.stamps[static_cast<size_t>(row)];
    const int64_t at = row % kDeltaChunk;
    std::fill_n(states.inputs(layer, row), kStates.channels, stamp);
    for (int64_t i = 0; i < kStates.key_dim; ++i)
      states.keys(layer, row, 0)[i * kDeltaChunk + at] = stamp;
    std::fill_n(states.updates(layer, row, 0) + at * kStates.value_dim, kStates.value_dim, stamp);
    states.decays(layer, row, 0)[at] = stamp;
  }

  void write_stamp(Modelled& sequence, int64_t position, int32_t token, bool is_draft) {
    CHECK(position == std::ssize(sequence.stamps));
    const uint16_t before = sequence.stamp_before(position);
    sequence.tokens.push_back(token);
    sequence.stamps.push_back(stamp_after(before, token, is_draft));
  }

  void write_pages(int id, const Modelled& sequence, int64_t start, int64_t end) {
    for (int64_t page = start / kPagePositions; page * kPagePositions < end; ++page) {
      CHECK(cache_.has_page(id, page));
      std::vector<uint16_t> bits = cache_.page_bits(id, page);
      for (size_t i = 0; i < bits.size(); ++i) {
        const int64_t position = page * kPagePositions + positions_[i];
        if (position >= start && position < end)
          bits[i] = sequence.stamps[static_cast<size_t>(position)];
      }
      cache_.write_page_bits(id, page, bits);
    }
  }

  void check_position(int id, const Modelled& sequence, int64_t position) {
    if (position < sequence.released) return;
    const int64_t page = position / kPagePositions;
    CHECK(cache_.has_page(id, page));
    const std::vector<uint16_t> bits = cache_.page_bits(id, page);
    for (size_t i = 0; i < bits.size(); ++i)
      if (page * kPagePositions + positions_[i] <= position)
        CHECK(bits[i] ==
              sequence.stamps[static_cast<size_t>(page * kPagePositions + positions_[i])]);
  }

  void check_text(int id, const Modelled& sequence) {
    const int64_t length = std::ssize(sequence.stamps);
    for (int64_t end = sequence.released + kPagePositions; end < length; end += kPagePositions)
      check_position(id, sequence, end - 1);
    if (length > 0) check_position(id, sequence, length - 1);
    for (int64_t page = 0; page < sequence.released / kPagePositions; ++page)
      CHECK(!cache_.has_page(id, page));
  }

  // Each page is free or belongs to a sequence.
  void check_pages() {
    std::set<const uint16_t*> held;
    for (const auto& [id, sequence] : sequences_)
      for (int64_t page = 0; page * kPagePositions < kLongest + kPagePositions; ++page)
        if (cache_.has_page(id, page)) held.insert(cache_.view(id, 0, 0).keys(page));
    CHECK(cache_.free_pages() + std::ssize(held) == cache_.total_pages());
  }

  // The number of slots is bounded, because they are used again.
  void check_slots() {
    RecurrentStates& states = cache_.states();
    CHECK(states.slots().cached() <= states.slots().most_cached());
    CHECK(std::ssize(slots_) <=
          states.capacity() * SequenceStates::kMostSlots + states.slots().most_cached());
  }

  void cut(Modelled& sequence, int64_t length) {
    sequence.tokens.resize(static_cast<size_t>(length));
    sequence.stamps.resize(static_cast<size_t>(length));
    sequence.exact = length;
  }

  int32_t run_token() { return given_.ConsumeIntegralInRange(0, 2); }

  const std::vector<int64_t> positions_ = positions_of_words();
  FuzzedDataProvider& given_;
  const bool has_states_;
  const int64_t pages_;
  KvCache cache_;
  std::map<int, Modelled> sequences_;
  std::set<const StateSlot*> slots_;  // all that were written
};

}  // namespace
}  // namespace specqd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider given(data, size);
  specqd::CacheFuzzer(given).run();
  return 0;
}
