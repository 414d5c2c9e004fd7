#include "model/kv_cache.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace specqd {
namespace {

uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::span<const int32_t> page_tokens(std::span<const int32_t> tokens, int64_t page) {
  return tokens.subspan(static_cast<size_t>(page * kPagePositions), kPagePositions);
}

}  // namespace

static_assert(kSavedPositions == kPagePositions);

KvCache::KvCache(KvShape shape, int64_t pages, StateShape states, int64_t most_states,
                 int64_t most_slots, bool uses_huge_pages)
    : shape_(std::move(shape)),
      states_(std::make_unique<RecurrentStates>(states, most_states, most_slots)),
      frame_words_(kFramePages * shape_.page_words()),
      references_(static_cast<size_t>(pages)),
      free_in_frame_(static_cast<size_t>((pages + kFramePages - 1) / kFramePages)),
      published_(static_cast<size_t>(pages)) {
  int64_t words = 0;
  for (const KvLayer& layer : shape_.layers) {
    layer_starts_.push_back(words);
    words += kFramePages * layer.page_words();
  }
  memory_ = Memory(free_in_frame_.size() * static_cast<size_t>(frame_words_) * sizeof(uint16_t),
                   uses_huge_pages);
  for (int64_t page = 0; page < pages; ++page) set_free(static_cast<int32_t>(page));
}

int64_t KvCache::unused_published() const { return static_cast<int64_t>(idle_.size()); }

int KvCache::create() {
  sequences_[next_sequence_];
  return next_sequence_++;
}

void KvCache::release(int sequence) {
  release_pages(sequence);
  sequences_.erase(sequence);
  states_->release(sequence);
}

void KvCache::release_pages(int sequence) {
  std::vector<int32_t>& table = sequences_.at(sequence);
  // The last page first, so that it is evicted first: a page is useless without those before it.
  for (auto page = table.rbegin(); page != table.rend(); ++page) drop_page(*page);
  table.clear();
}

int KvCache::fork(int sequence, int64_t length) {
  const std::vector<int32_t> table = sequences_.at(sequence);
  const auto pages = static_cast<size_t>((length + kPagePositions - 1) / kPagePositions);
  if (length < 0 || pages > table.size())
    throw std::invalid_argument("the sequence has no pages for so many positions");
  const int copy = create();
  auto& shared = sequences_[copy];
  shared.assign(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(pages));
  for (const int32_t page : shared)
    if (page != kNoPage) ++references_[static_cast<size_t>(page)];
  states_->fork(sequence, copy);
  return copy;
}

bool KvCache::make_writable(int sequence, int64_t first, int64_t last) {
  auto& table = sequences_.at(sequence);
  const auto begin = static_cast<size_t>(first / kPagePositions);
  const auto end = static_cast<size_t>((last + kPagePositions - 1) / kPagePositions);
  const auto is_own = [&](size_t i) {
    return i < table.size() && table[i] != kNoPage &&
           references_[static_cast<size_t>(table[i])] == 1 &&
           published_[static_cast<size_t>(table[i])].id == 0;
  };
  int64_t needed = 0;
  for (size_t i = begin; i < end; ++i) needed += is_own(i) ? 0 : 1;
  if (needed > free_pages() || !states_->reserve(sequence)) return false;
  if (needed == 0) return true;
  if (table.size() < end) table.resize(end, kNoPage);
  for (size_t i = begin; i < end; ++i) {
    if (is_own(i)) continue;
    const int32_t old = table[i], fresh = take_page(i > 0 ? table[i - 1] : kNoPage);
    const bool keeps_positions = first > static_cast<int64_t>(i) * kPagePositions;
    if (old != kNoPage && keeps_positions) copy_page(old, fresh);
    if (old != kNoPage) drop_page(old);
    table[i] = fresh;
  }
  return true;
}

int64_t KvCache::attach_prefix(int sequence, std::span<const int32_t> tokens, uint64_t salt) {
  auto& table = sequences_.at(sequence);
  assert(table.empty());
  const int64_t most = (static_cast<int64_t>(tokens.size()) - 1) / kPagePositions;
  int64_t parent = 0;
  for (int64_t i = 0; i < most; ++i) {
    const int32_t page = find({salt, parent, page_tokens(tokens, i)});
    if (page == kNoPage) break;
    table.push_back(page);
    parent = published_[static_cast<size_t>(page)].id;
  }
  if (states_->exist()) table.resize(attach_state(sequence, table));
  for (const int32_t page : table)
    if (references_[static_cast<size_t>(page)]++ == 0) std::erase(idle_, page);
  return static_cast<int64_t>(table.size()) * kPagePositions;
}

// Begins the sequence at the last of these pages that has a cached state, and returns the number of
// pages up to there. The sequence will save a state where `pages` ends, because later sequences may
// share the same pages.
size_t KvCache::attach_state(int sequence, std::span<const int32_t> pages) {
  if (pages.empty() || !states_->reserve(sequence)) return 0;
  SequenceStates& states = states_->of(sequence);
  states.branch = std::ssize(pages) * kPagePositions;
  for (size_t count = pages.size(); count > 0; --count) {
    const Published& page = published_[static_cast<size_t>(pages[count - 1])];
    if (const SlotPtr slot = states_->slots().find(page.id)) {
      states.begin({static_cast<int64_t>(count) * kPagePositions, slot});
      return count;
    }
  }
  return 0;
}

void KvCache::publish(int sequence, std::span<const int32_t> tokens, uint64_t salt) {
  const auto& table = sequences_.at(sequence);
  const int64_t full = std::min(static_cast<int64_t>(tokens.size()) / kPagePositions,
                                static_cast<int64_t>(table.size()));
  int64_t parent = 0;
  for (int64_t i = 0; i < full; ++i) {
    const int32_t page = table[static_cast<size_t>(i)];
    if (page == kNoPage) return;  // released because of a window: later pages have no known prefix
    const Prefix prefix{salt, parent, page_tokens(tokens, i)};
    int32_t known = find(prefix);
    if (known == kNoPage) {
      if (by_hash_.contains(prefix.hash())) return;  // a collision with other tokens
      unpublish(page);                               // its parent may have been evicted since
      publish_page(page, prefix);
      known = page;
    }
    parent = published_[static_cast<size_t>(known)].id;
    if (const SlotPtr slot = states_->saved(sequence, (i + 1) * kPagePositions))
      states_->slots().cache(parent, slot);
  }
  states_->forget_earlier(sequence);
}

uint64_t KvCache::Prefix::hash() const {
  uint64_t hash = mix(salt + 0x9e3779b97f4a7c15u);
  hash = mix(hash ^ static_cast<uint64_t>(parent));
  for (const int32_t token : tokens) hash = mix(hash ^ static_cast<uint32_t>(token));
  return hash;
}

int32_t KvCache::find(const Prefix& prefix) const {
  const auto found = by_hash_.find(prefix.hash());
  if (found == by_hash_.end()) return kNoPage;
  const Published& page = published_[static_cast<size_t>(found->second)];
  const bool is_same = page.salt == prefix.salt && page.parent == prefix.parent &&
                       std::ranges::equal(page.tokens, prefix.tokens);
  return is_same ? found->second : kNoPage;
}

void KvCache::publish_page(int32_t page, const Prefix& prefix) {
  published_[static_cast<size_t>(page)] = {
      ++last_id_, prefix.salt, prefix.parent, {prefix.tokens.begin(), prefix.tokens.end()}};
  by_hash_[prefix.hash()] = page;
}

void KvCache::release_behind(int sequence, int64_t position) {
  auto& table = sequences_.at(sequence);
  const auto passed = static_cast<size_t>(std::max<int64_t>(position, 0) / kPagePositions);
  for (size_t i = 0; i < std::min(passed, table.size()); ++i) {
    if (table[i] != kNoPage) drop_page(table[i]);
    table[i] = kNoPage;
  }
}

bool KvCache::has_page(int sequence, int64_t page) const {
  const auto& table = sequences_.at(sequence);
  return page >= 0 && page < std::ssize(table) && table[static_cast<size_t>(page)] != kNoPage;
}

KvView KvCache::view(const int32_t* pages, int64_t layer, int64_t kv_head) const {
  const KvLayer& shape = shape_.layers[static_cast<size_t>(layer)];
  const int64_t start = layer_starts_[static_cast<size_t>(layer)] + kv_head * shape.strip_words();
  return {reinterpret_cast<uint16_t*>(memory_.data()) + start, pages, frame_words_, shape};
}

KvView KvCache::view(int sequence, int64_t layer, int64_t kv_head) const {
  return view(sequences_.at(sequence).data(), layer, kv_head);
}

template <class F>
void KvCache::for_page_runs(int32_t page, const F& f) const {
  int64_t at = 0;
  for (int64_t layer = 0; layer < std::ssize(shape_.layers); ++layer) {
    const KvLayer& shape = shape_.layers[static_cast<size_t>(layer)];
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const KvView own = view(&page, layer, kv_head);
      f(own.keys(0), at, shape.key_words());
      at += shape.key_words();
      f(own.values(0), at, shape.value_words());
      at += shape.value_words();
    }
  }
}

std::vector<uint16_t> KvCache::page_bits(int sequence, int64_t page) const {
  std::vector<uint16_t> bits(static_cast<size_t>(shape_.page_words()));
  for_page_runs(sequences_.at(sequence)[static_cast<size_t>(page)],
                [&](const uint16_t* words, int64_t at, int64_t count) {
                  std::copy_n(words, count, bits.begin() + at);
                });
  return bits;
}

void KvCache::write_page_bits(int sequence, int64_t page, std::span<const uint16_t> bits) {
  for_page_runs(sequences_.at(sequence)[static_cast<size_t>(page)],
                [&](uint16_t* words, int64_t at, int64_t count) {
                  std::copy_n(bits.begin() + at, count, words);
                });
}

bool KvCache::append_page(int sequence, std::span<const uint16_t> bits) {
  const int64_t page = std::ssize(sequences_.at(sequence)), first = page * kPagePositions;
  if (!make_writable(sequence, first, first + kPagePositions)) return false;
  write_page_bits(sequence, page, bits);
  return true;
}

SlotPtr KvCache::cached_state(int sequence, int64_t page) const {
  const int32_t held = sequences_.at(sequence)[static_cast<size_t>(page)];
  return states_->slots().find(published_[static_cast<size_t>(held)].id);
}

bool KvCache::restore_state(int sequence, std::span<const uint8_t> bits) {
  return states_->restore(sequence, std::ssize(sequences_.at(sequence)) * kPagePositions, bits);
}

void KvCache::copy_page(int32_t from, int32_t to) {
  for (int64_t layer = 0; layer < std::ssize(shape_.layers); ++layer) {
    const KvLayer& shape = shape_.layers[static_cast<size_t>(layer)];
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const KvView source = view(&from, layer, kv_head), target = view(&to, layer, kv_head);
      std::copy_n(source.keys(0), shape.key_words(), target.keys(0));
      std::copy_n(source.values(0), shape.value_words(), target.values(0));
    }
  }
}

// Returns the free page right after `before`, so that both are contiguous; or else the first page
// of an unused frame, so that later pages can follow it.
int32_t KvCache::best_free_page(int32_t before) const {
  const int32_t after = before + 1;
  if (before != kNoPage && after % kFramePages != 0 && free_.contains(after)) return after;
  const auto unused = std::ranges::find(free_in_frame_, kFramePages);
  if (unused == free_in_frame_.end()) return *free_.begin();
  return static_cast<int32_t>((unused - free_in_frame_.begin()) * kFramePages);
}

int32_t KvCache::take_page(int32_t before) {
  if (free_.empty()) {  // evict the oldest published page that no sequence holds
    const int32_t oldest = idle_.front();
    idle_.erase(idle_.begin());
    unpublish(oldest);
    set_free(oldest);
  }
  const int32_t page = best_free_page(before);
  free_.erase(page);
  --free_in_frame_[static_cast<size_t>(page / kFramePages)];
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void KvCache::set_free(int32_t page) {
  free_.insert(page);
  ++free_in_frame_[static_cast<size_t>(page / kFramePages)];
}

void KvCache::drop_page(int32_t page) {
  if (page == kNoPage || --references_[static_cast<size_t>(page)] > 0) return;
  if (published_[static_cast<size_t>(page)].id != 0)
    idle_.push_back(page);
  else
    set_free(page);
}

void KvCache::unpublish(int32_t page) {
  Published& entry = published_[static_cast<size_t>(page)];
  if (entry.id == 0) return;
  by_hash_.erase(Prefix{entry.salt, entry.parent, entry.tokens}.hash());
  states_->slots().forget(entry.id);
  entry = {};
}

}  // namespace specqd
