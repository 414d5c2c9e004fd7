// Keys and values of many sequences in pages of 64 positions, which sequences may share.
//
// A page holds all cached layers, which may differ in the number and size of their heads. Keys are
// stored as the panels of a matrix [positions, head_dim], values as those of a transpose
// [value_dim, positions], so that attention consists of two exact products. Eight pages make a
// frame, [layer][key-value head][keys of 8 pages, values of 8 pages]. Consecutive pages of a
// sequence mostly share a frame; a chunk of a head's keys is then contiguous in memory.
//
// A sequence is a table of pages. The caller keeps its length and rolls back by using a smaller
// one. The cache does not know which positions are accepted: the caller passes only accepted ones
// to publish() and release_behind().
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/page_choice.h"
#include "model/recurrent_states.h"
#include "weights/pack.h"

namespace specqd {

constexpr int64_t kChunkPositions = 512;  // attention merges the partial results of chunks
constexpr int64_t kFramePages = kChunkPositions / kPagePositions;

// The keys and values of one layer.
struct KvLayer {
  int64_t kv_heads, head_dim, value_dim;
  int64_t key_tiles() const { return (head_dim + kBlock - 1) / kBlock; }      // per panel
  int64_t value_panels() const { return (value_dim + kPanel - 1) / kPanel; }  // 2 tiles each
  int64_t key_words() const { return kPagePositions / kPanel * key_tiles() * kTileWeights; }
  int64_t value_words() const { return value_panels() * (kPagePositions / kBlock) * kTileWeights; }
  int64_t page_words() const { return kv_heads * (key_words() + value_words()); }
  bool operator==(const KvLayer&) const = default;
  // Words of one key-value head in a frame.
  int64_t strip_words() const { return kFramePages * (key_words() + value_words()); }
};

struct KvShape {
  std::vector<KvLayer> layers;
  int64_t page_words() const {
    int64_t words = 0;
    for (const KvLayer& layer : layers) words += layer.page_words();
    return words;
  }
  bool operator==(const KvShape&) const = default;
};

// Keys and values of one sequence in one layer for one key-value head, by page. Valid until the
// sequence's pages change. Through a choice, the pages are only the chosen ones, numbered by their
// place in the strip's list.
class KvView {
 public:
  KvView(uint16_t* strip, const int32_t* pages, int64_t frame_words, const KvLayer& layer)
      : strip_(strip),
        pages_(pages),
        frame_words_(frame_words),
        key_words_(layer.key_words()),
        value_words_(layer.value_words()) {}
  KvView through(const PageChoice& choice, int64_t strip) const {
    KvView view = *this;
    view.earlier_ = choice.of_strip(strip);
    view.first_earlier_ = choice.begin_of_strip(strip);
    view.recent_at_ = choice.most;
    view.skipped_ = choice.skipped_by_all();
    return view;
  }
  using Page = uint16_t* (KvView::*)(int64_t) const;  // keys or values
  uint16_t* keys(int64_t page) const {
    const int32_t at = stored(page);
    return strip_ + at / kFramePages * frame_words_ + at % kFramePages * key_words_;
  }
  uint16_t* values(int64_t page) const {
    const int32_t at = stored(page);
    return strip_ + at / kFramePages * frame_words_ + kFramePages * key_words_ +
           at % kFramePages * value_words_;
  }

 private:
  int32_t stored(int64_t page) const {
    return pages_[page < recent_at_ ? earlier_[static_cast<size_t>(page - first_earlier_)]
                                    : page + skipped_];
  }

  uint16_t* strip_;  // in the cache's first frame
  const int32_t* pages_;
  int64_t frame_words_, key_words_, value_words_;
  std::span<const int32_t> earlier_ = {};
  // Places in the list of the first of `earlier_` and of the first recent page, and the pages that
  // the latter is behind its place.
  int64_t first_earlier_ = 0, recent_at_ = 0, skipped_ = 0;
};

class KvCache {
 public:
  // Reserves address space for `pages` pages; a frame takes memory when it is first written. At
  // most `most_states` sequences can have states of recurrent layers, and at most `most_slots` more
  // states are cached. A huge page holds several heads: use small pages to place heads on nodes.
  KvCache(KvShape shape, int64_t pages, StateShape states = {}, int64_t most_states = 0,
          int64_t most_slots = 0, bool uses_huge_pages = true);

  const KvShape& shape() const { return shape_; }
  RecurrentStates& states() const { return *states_; }
  int64_t total_pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()) + unused_published(); }

  int create();
  void release(int sequence);
  void release_pages(int sequence);  // the sequence becomes empty; its states stay
  // Creates a sequence that shares all pages up to `length`; a shared page is copied before a
  // write. It shares the states too, unless no states are free: then it has none.
  int fork(int sequence, int64_t length);

  // Makes positions [first, last) writable: allocates missing pages and copies shared or published
  // ones. Returns false and changes nothing if there are too few free pages, or no free states.
  bool make_writable(int sequence, int64_t first, int64_t last);

  // Adds published pages that hold exactly the prefix of these tokens to an empty sequence, at most
  // (n - 1) / 64 pages, so that a token remains to forward. If layers are recurrent, the pages end
  // where a state is cached. Returns the number of positions.
  int64_t attach_prefix(int sequence, std::span<const int32_t> tokens, uint64_t salt);
  // Publishes the sequence's full pages, which must hold the exact keys and values of `tokens`,
  // and caches the states that the sequence saved at the ends of these pages.
  void publish(int sequence, std::span<const int32_t> tokens, uint64_t salt);
  // Releases pages that end at or before `position`, because no later row reads them.
  void release_behind(int sequence, int64_t position);

  bool has_page(int sequence, int64_t page) const;

  KvView view(int sequence, int64_t layer, int64_t kv_head) const;

  // Reads and replaces the words of a page: by layer, [kv_heads][keys, values].
  std::vector<uint16_t> page_bits(int sequence, int64_t page) const;
  void write_page_bits(int sequence, int64_t page, std::span<const uint16_t> bits);
  // Adds a page with these words to the sequence; returns false if no page or no states are free.
  bool append_page(int sequence, std::span<const uint16_t> bits);
  // The state that is cached for the end of the sequence's page, if this page is published; null:
  // none.
  SlotPtr cached_state(int sequence, int64_t page) const;
  // Begins the sequence's states at the end of its pages; returns false if no states are free.
  bool restore_state(int sequence, std::span<const uint8_t> bits);

 private:
  // A published page. Its parent is the id of the page before it. Ids are never reused, so equal
  // tokens after equal parents mean equal prefixes, even if hashes collide.
  struct Published {
    int64_t id = 0;  // 0: not published
    uint64_t salt = 0;
    int64_t parent = 0;  // 0: the first page
    std::vector<int32_t> tokens;
  };
  struct Prefix {
    uint64_t salt;
    int64_t parent;
    std::span<const int32_t> tokens;  // of the page
    uint64_t hash() const;
  };
  static constexpr int32_t kNoPage = -1;

  int64_t unused_published() const;
  size_t attach_state(int sequence, std::span<const int32_t> pages);
  int32_t take_page(int32_t before);
  int32_t best_free_page(int32_t before) const;
  void set_free(int32_t page);
  void copy_page(int32_t from, int32_t to);
  void drop_page(int32_t page);
  int32_t find(const Prefix& prefix) const;
  void publish_page(int32_t page, const Prefix& prefix);
  void unpublish(int32_t page);
  // Calls f(words, offset within the page, count) for every run of a page's words.
  template <class F>
  void for_page_runs(int32_t page, const F& f) const;
  KvView view(const int32_t* pages, int64_t layer, int64_t kv_head) const;

  KvShape shape_;
  std::unique_ptr<RecurrentStates> states_;
  int64_t frame_words_;
  std::vector<int64_t> layer_starts_;  // of each layer's words in a frame
  Memory memory_;
  std::vector<int32_t> references_;  // by page: how many sequences hold it
  std::set<int32_t> free_;
  std::vector<int8_t> free_in_frame_;
  std::vector<Published> published_;               // by page
  std::unordered_map<uint64_t, int32_t> by_hash_;  // published pages
  std::vector<int32_t> idle_;                      // published pages of no sequence, oldest first
  std::unordered_map<int, std::vector<int32_t>> sequences_;
  int next_sequence_ = 0;
  int64_t last_id_ = 0;
};

}  // namespace specqd
