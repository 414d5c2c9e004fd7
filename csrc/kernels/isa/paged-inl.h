// The products of attention: queries by keys, and softmax weights by values, in pages of the KV
// cache.
#pragma once

#include <cstring>

#include "kernels/isa/product-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

// Panels of plain BF16 tiles. `next` points to the same number of panels that the next call will
// multiply, so that this call can prefetch them; it may be null.
struct PlainPanels {
  const uint16_t* data = nullptr;
  int64_t panels = 0;
  int64_t tiles = 0;   // per panel
  int64_t stride = 0;  // weights from one panel to the next
  const uint16_t* next = nullptr;
};

// Adds the exact sums of panel p to out[m * out_stride + 16 * p + n]. x.data points to the prepared
// inputs of the first tile.
using AccumulatePlain = void(const PlainPanels& w, const PreparedRows& x, float* out,
                             int64_t out_stride);

template <class S, class Plain = PlainAhead>
void accumulate_plain_by(const PlainPanels& w, const PreparedRows& x, float* out,
                         int64_t out_stride) {
  if (x.count == 0) return;
  const typename S::Scope scope(x.count);
  for (int64_t p = 0; p < w.panels; ++p) {
    const uint16_t* const tiles = w.data + p * w.stride;
    float* const at = out + p * kPanel;
    if (w.next == nullptr)
      S::multiply(tiles, w.tiles, x, at, out_stride, Nothing{});
    else
      S::multiply(tiles, w.tiles, x, at, out_stride, Plain(w.next + p * w.stride, w.tiles));
  }
}

inline const uint16_t* keys_at(const KvPages& keys, int64_t position) {
  return keys.pages[position / kPagePositions] + position % kPagePositions * keys.width;
}
inline const uint16_t* values_at(const KvPages& values, int64_t position) {
  return values.pages[position / kPagePositions] +
         position % kPagePositions / kBlock * kTileWeights;
}

// Calls f(begin, end) for the positions of each page.
template <class F>
[[gnu::always_inline]] inline void for_pages(const KvPages& all, const F& f) {
  for (int64_t at = all.begin, to; at < all.end; at = to) {
    to = (at / kPagePositions + 1) * kPagePositions;
    if (to > all.end) to = all.end;
    f(at, to);
  }
}

inline void zero_rows(float* out, int64_t rows, int64_t width, int64_t stride) {
  for (int64_t m = 0; m < rows; ++m)
    std::memset(out + m * stride, 0, static_cast<size_t>(width) * sizeof(float));
}

template <AccumulatePlain Accumulate>
void score_keys_by(const KvPages& keys, const PreparedRows& queries, float* scores, int64_t stride,
                   PagesAhead& ahead) {
  zero_rows(scores, queries.count, keys.end - keys.begin, stride);
  const KvPages& after = ahead.values;
  const uint16_t* const next = after.begin < after.end ? values_at(after, after.begin) : nullptr;
  for_pages(keys, [&](int64_t at, int64_t to) {
    Accumulate({keys_at(keys, at), (to - at) / kPanel, keys.width / kBlock, keys.width * kPanel,
                to < keys.end ? keys_at(keys, to) : next},
               queries, scores + (at - keys.begin), stride);
  });
}

template <AccumulatePlain Accumulate, size_t BlockBytes>
void sum_values_by(const KvPages& values, const PreparedRows& weights, float* out,
                   PagesAhead& ahead) {
  zero_rows(out, weights.count, values.width, values.width);
  const KvPages& after = ahead.keys;
  const uint16_t* const next = after.begin < after.end ? keys_at(after, after.begin) : nullptr;
  for_pages(values, [&](int64_t at, int64_t to) {
    const auto block = static_cast<size_t>((at - values.begin) / kBlock);
    Accumulate({values_at(values, at), values.width / kPanel, (to - at) / kBlock,
                kPageTiles * kTileWeights, to < values.end ? values_at(values, to) : next},
               rows_from(weights, 0, block * BlockBytes), out, values.width);
  });
}

template <AccumulatePlain Accumulate, size_t BlockBytes>
constexpr void attend_by(Kernels& table) {
  table.score_keys = score_keys_by<Accumulate>;
  table.sum_values = sum_values_by<Accumulate, BlockBytes>;
}

}  // namespace
}  // namespace specqd
