#include "kv_cache.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace specqd {
namespace {

uint64_t mixed(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::span<const int32_t> page_tokens(std::span<const int32_t> tokens, int64_t page) {
  return tokens.subspan(static_cast<size_t>(page * kPagePositions), kPagePositions);
}

}  // namespace

KvCache::KvCache(KvShape shape, int64_t pages)
    : shape_(shape),
      memory_(static_cast<size_t>(pages * shape.page_words()) * sizeof(uint16_t)),
      references_(static_cast<size_t>(pages), 0),
      published_(static_cast<size_t>(pages)) {
  for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int64_t KvCache::unused_published() const { return static_cast<int64_t>(idle_.size()); }

int KvCache::create() {
  sequences_[next_sequence_];
  return next_sequence_++;
}

void KvCache::release(int sequence) {
  const std::vector<int32_t>& table = sequences_.at(sequence);
  // Last page first: it makes room first, and a page is of no use without those before it.
  for (auto page = table.rbegin(); page != table.rend(); ++page) drop_page(*page);
  sequences_.erase(sequence);
}

int KvCache::fork(int sequence, int64_t length) {
  const std::vector<int32_t> table = sequences_.at(sequence);
  const int copy = create();
  const auto pages = static_cast<size_t>((length + kPagePositions - 1) / kPagePositions);
  assert(pages <= table.size());
  auto& shared = sequences_[copy];
  shared.assign(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(pages));
  for (const int32_t page : shared)
    if (page != kNoPage) ++references_[static_cast<size_t>(page)];
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
  if (needed == 0) return true;
  if (needed > free_pages()) return false;
  if (table.size() < end) table.resize(end, kNoPage);
  for (size_t i = begin; i < end; ++i) {
    if (is_own(i)) continue;
    const int32_t old = table[i], fresh = take_page();
    const bool keeps_positions = first > static_cast<int64_t>(i) * kPagePositions;
    if (old != kNoPage && keeps_positions)
      std::memcpy(words_of(fresh), words_of(old),
                  static_cast<size_t>(shape_.page_words()) * sizeof(uint16_t));
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
    if (references_[static_cast<size_t>(page)]++ == 0) std::erase(idle_, page);
    table.push_back(page);
    parent = published_[static_cast<size_t>(page)].id;
  }
  return static_cast<int64_t>(table.size()) * kPagePositions;
}

void KvCache::publish(int sequence, std::span<const int32_t> tokens, uint64_t salt) {
  const auto& table = sequences_.at(sequence);
  const int64_t full = std::min(static_cast<int64_t>(tokens.size()) / kPagePositions,
                                static_cast<int64_t>(table.size()));
  int64_t parent = 0;
  for (int64_t i = 0; i < full; ++i) {
    const int32_t page = table[static_cast<size_t>(i)];
    if (page == kNoPage) return;  // freed behind a window: what follows has no known prefix
    const Prefix prefix{salt, parent, page_tokens(tokens, i)};
    int32_t known = find(prefix);
    if (known == kNoPage) {
      if (by_hash_.contains(prefix.hash())) return;  // taken by other tokens
      unpublish(page);  // if it follows a page that has since made room
      publish_page(page, prefix);
      known = page;
    }
    parent = published_[static_cast<size_t>(known)].id;
  }
}

uint64_t KvCache::Prefix::hash() const {
  uint64_t hash = mixed(salt + 0x9e3779b97f4a7c15u);
  hash = mixed(hash ^ static_cast<uint64_t>(parent));
  for (const int32_t token : tokens) hash = mixed(hash ^ static_cast<uint32_t>(token));
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
  return page < static_cast<int64_t>(table.size()) && table[static_cast<size_t>(page)] != kNoPage;
}

KvView KvCache::view(int sequence, int64_t layer, int64_t kv_head) const {
  const int64_t before =
      (layer * shape_.kv_heads + kv_head) * (shape_.key_words() + shape_.value_words());
  return {words_of(0) + before, sequences_.at(sequence).data(), shape_};
}

uint16_t* KvCache::page_words(int sequence, int64_t page) const {
  return words_of(sequences_.at(sequence)[static_cast<size_t>(page)]);
}

int32_t KvCache::take_page() {
  if (free_.empty()) {  // the oldest published page that nobody holds makes room
    const int32_t oldest = idle_.front();
    idle_.erase(idle_.begin());
    unpublish(oldest);
    free_.push_back(oldest);
  }
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void KvCache::drop_page(int32_t page) {
  if (page == kNoPage || --references_[static_cast<size_t>(page)] > 0) return;
  if (published_[static_cast<size_t>(page)].id != 0)
    idle_.push_back(page);
  else
    free_.push_back(page);
}

void KvCache::unpublish(int32_t page) {
  Published& entry = published_[static_cast<size_t>(page)];
  if (entry.id == 0) return;
  by_hash_.erase(Prefix{entry.salt, entry.parent, entry.tokens}.hash());
  entry = {};
}

uint16_t* KvCache::words_of(int32_t page) const {
  return reinterpret_cast<uint16_t*>(memory_.data()) + page * shape_.page_words();
}

}  // namespace specqd
