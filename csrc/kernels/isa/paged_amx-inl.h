// The products of attention on tile registers. They are fast, so that a core mostly waits for
// memory, and it can wait for few lines at once. Therefore it prefetches all the time what it reads
// next, into the second-level cache: some of it while it computes scores, most during the softmax,
// which takes longest and uses no memory, and the rest while it sums values.
#pragma once

#include "kernels/isa/paged-inl.h"
#include "kernels/isa/product_many_amx-inl.h"

namespace specqd {
namespace {

// Prefetches what attention reads next, from where the last object stopped. It takes the two halves
// of a page in turn, because the processor's own prefetching then follows both.
class LinesAhead {
 public:
  explicit LinesAhead(PagesAhead* ahead) : ahead_(ahead) {
    if (ahead_ == nullptr) return;
    open_page();
    at_ += ahead_->line * kLineWords;
  }
  ~LinesAhead() {
    if (ahead_ != nullptr) ahead_->line = (at_ - begin_) / kLineWords;
  }
  LinesAhead(const LinesAhead&) = delete;
  LinesAhead& operator=(const LinesAhead&) = delete;

  // Prefetches so many lines of each half.
  [[gnu::always_inline]] void fetch(int64_t pairs) {
    for (; pairs > 0 && at_ != end_; --pairs) {
      FetchIntoSecondLevel::from(at_);
      FetchIntoSecondLevel::from(at_ + half_);
      at_ += kLineWords;
      if (at_ != end_) continue;
      ++ahead_->page;
      open_page();
    }
  }
  // Six lines for each four vectors of exponentials, about as fast as memory gives them.
  [[gnu::always_inline]] void after_vector(int64_t number) { fetch(number % 4 == 0 ? 0 : 1); }

  int64_t pairs_left() const {
    const KvPages &values = ahead_->values, &keys = ahead_->keys;
    const int64_t page = ahead_->page, of_values = page < count(values) ? count(values) - page : 0;
    const int64_t of_keys = count(values) + count(keys) - page - of_values;
    return of_values * pairs(values) + of_keys * pairs(keys) - (at_ - begin_) / kLineWords;
  }

 private:
  static constexpr int64_t kLineWords = 32;  // of 64 bytes

  static int64_t count(const KvPages& all) {
    return (all.end + kPagePositions - 1) / kPagePositions;
  }
  static int64_t pairs(const KvPages& all) { return kPagePositions * all.width / 2 / kLineWords; }

  void open_page() {
    const int64_t values = count(ahead_->values), page = ahead_->page;
    const KvPages& all = page < values ? ahead_->values : ahead_->keys;
    const int64_t number = page < values ? page : page - values;
    const bool is_end = number >= count(all);
    half_ = kPagePositions * all.width / 2;
    begin_ = at_ = is_end ? nullptr : all.pages[number];
    end_ = is_end ? nullptr : begin_ + half_;
  }

  PagesAhead* ahead_;
  const uint16_t *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;  // of the first half
  int64_t half_ = 0;                                                  // words
};

// Calls f<number of groups of 16 rows>(first row) for all queries. Up to three groups share each
// tile of keys or values that is loaded.
template <class T, class F>
[[gnu::always_inline]] inline void for_queries(int64_t count, const F& f) {
  using Sums = AmxSums<T>;
  if (count <= Sums::kMostRows)
    Sums::template for_rows<Sums::kMostRows>(count, f);
  else
    Sums::template for_rows<Sums::kRows>(count, f);
  T::release();
}

template <class T>
void score_keys_amx(const KvPages& keys, const PreparedRows& queries, float* scores, int64_t stride,
                    PagesAhead& ahead) {
  constexpr int64_t kPairsPerTile = 3;
  const int64_t tiles = keys.width / kBlock;
  LinesAhead lines(&ahead);
  for_queries<T>(queries.count, [&]<int Groups>(int64_t m) {
    constexpr int kPanels = AmxSums<T>::template kPanelsOf<Groups>;
    const PreparedRows rows = rows_from(queries, m, 0);
    for_pages(keys, [&](int64_t first, int64_t last) {
      for (int64_t at = first; at < last; at += kPanels * kPanel) {
        const uint16_t* const panels = keys_at(keys, at);
        AmxSums<T>::template accumulate<Groups, kPanels>(
            [&](int64_t p, int64_t t) { return panels + (p * tiles + t) * kTileWeights; }, tiles,
            true, rows, scores + m * stride + at - keys.begin, stride,
            [&](int64_t) { lines.fetch(kPanels * kPairsPerTile); });
      }
    });
  });
}

template <class T>
void sum_values_amx(const KvPages& values, const PreparedRows& weights, float* out,
                    PagesAhead& ahead) {
  const int64_t first = values.begin / kBlock, tiles = values.end / kBlock - first;
  const int64_t panels = values.width / kPanel;
  LinesAhead lines(&ahead);
  const int64_t pairs_per_tile = (lines.pairs_left() + panels * tiles - 1) / (panels * tiles);
  for_queries<T>(weights.count, [&]<int Groups>(int64_t m) {
    constexpr int kPanels = AmxSums<T>::template kPanelsOf<Groups>;
    const PreparedRows rows = rows_from(weights, m, 0);
    const auto sum = [&]<int Panels>(int64_t panel) {
      AmxSums<T>::template accumulate<Groups, Panels>(
          [&](int64_t p, int64_t t) {
            return values.pages[(first + t) / kPageTiles] +
                   ((panel + p) * kPageTiles + (first + t) % kPageTiles) * kTileWeights;
          },
          tiles, true, rows, out + m * values.width + panel * kPanel, values.width,
          [&](int64_t) { lines.fetch(Panels * pairs_per_tile); });
    };
    int64_t panel = 0;
    for (; panel + kPanels <= panels; panel += kPanels) sum.template operator()<kPanels>(panel);
    if (panel < panels) sum.template operator()<1>(panel);
  });
}

}  // namespace
}  // namespace specqd
