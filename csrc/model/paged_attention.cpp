#include "model/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/bf16.h"

namespace specqd {
namespace {

constexpr int64_t kRowsAtOnce = 64;  // queries per product: rows times heads of the group
constexpr int64_t kPartsAhead = 4;
constexpr int64_t kChunkPages = kChunkPositions / kPagePositions;
// This is not a power of two: rows of scores would then share few sets of the first-level cache.
constexpr int64_t kScoreStride = kChunkPositions + kPanel;

}  // namespace

PagedAttention::PagedAttention(AttentionShape shape, Reach longest, const Kernels& kernels,
                               int threads, int64_t max_rows)
    : shape_(shape),
      longest_(longest),
      kernels_(kernels),
      rows_at_once_(std::max<int64_t>(1, kRowsAtOnce / shape.group())),
      query_bytes_(kernels.exact_row_bytes(shape.key_tiles())),
      weight_bytes_(kernels.exact_row_bytes(kChunkPositions / kBlock)),
      plan_(longest, rows_at_once_,
            static_cast<int64_t>(kWaveBytes / sizeof(float)) / (shape.heads * shape.value_width())),
      queries_(static_cast<size_t>(max_rows * shape.heads) * query_bytes_),
      running_(static_cast<size_t>(max_rows * shape.heads)) {
  const auto products = static_cast<size_t>(rows_at_once_ * shape.group());
  for (int i = 0; i < threads; ++i) {
    scores_.emplace_back(products * kScoreStride * sizeof(float));
    weights_.emplace_back(products * weight_bytes_);
  }
}

void PagedAttention::plan(std::span<const SequenceRows> sequences,
                          std::span<const int32_t> weighed_rows) {
  sequences_.assign(sequences.begin(), sequences.end());
  weighed_rows_.clear();
  if (longest_.window == 0) {
    weighed_rows_.assign(weighed_rows.begin(), weighed_rows.end());
    for (SequenceRows& rows : sequences_)
      if (rows.choice != nullptr) rows.start -= rows.choice->skipped_by_all() * kPagePositions;
  }
  plan_.make(sequences_);
  const auto parts = static_cast<size_t>(plan_.part_count() * shape_.heads);
  const size_t bytes = parts * static_cast<size_t>(shape_.value_width()) * sizeof(float);
  if (bytes > parts_.size()) parts_ = Memory(std::max(bytes, std::min(2 * bytes, kWaveBytes)));
  if (parts > part_sums_.size()) part_sums_.resize(parts);
  if (weighed_rows_.empty()) return;
  const int64_t weighed = *std::ranges::max_element(weighed_rows_) + 1;
  const auto chunks = static_cast<size_t>(weighed * shape_.heads * plan_.chunk_count());
  if (chunks > chunk_maxima_.size()) {
    chunk_maxima_.resize(chunks);
    page_sums_.resize(chunks * kChunkPages);
  }
}

int64_t PagedAttention::query_index(int64_t row, int64_t head) const {
  const int64_t group = shape_.group();
  return (head / group * plan_.rows() + row) * group + head % group;
}

uint8_t* PagedAttention::query(int64_t row, int64_t head) {
  return queries_.data() + static_cast<size_t>(query_index(row, head)) * query_bytes_;
}

// Like queries, the partial results of one pass and one key-value head are consecutive.
size_t PagedAttention::part_index(int64_t part, int64_t head) const {
  const int64_t group = shape_.group();
  return static_cast<size_t>((head / group * plan_.part_count() + part) * group + head % group);
}

float* PagedAttention::part_values(int64_t part, int64_t head) {
  return reinterpret_cast<float*>(parts_.data()) +
         part_index(part, head) * static_cast<size_t>(shape_.value_width());
}

void PagedAttention::write(const KvView& view, int64_t position, const float* key,
                           const float* value) const {
  uint16_t bits[kLargestHeadDim];
  const int64_t page = position / kPagePositions, at = position % kPagePositions;
  kernels_.round_bf16_finite(key, shape_.head_dim, bits);
  uint16_t* keys =
      view.keys(page) + at / kPanel * shape_.key_tiles() * kTileWeights + at % kPanel * 2;
  for (int64_t d = 0; d < shape_.head_dim; d += 2)
    std::memcpy(keys + d / kBlock * kTileWeights + d % kBlock / 2 * 32, bits + d, 4);
  kernels_.round_bf16_finite(value, shape_.value_dim, bits);
  uint16_t* values = view.values(page) + at / kBlock * kTileWeights + at % kBlock / 2 * 32 + at % 2;
  for (int64_t d = 0; d < shape_.value_dim; ++d)
    values[d / kPanel * kPageTiles * kTileWeights + d % kPanel * 2] = bits[d];
}

void PagedAttention::clear_after(const KvView& view, int64_t last) const {
  uint16_t* values =
      view.values(last / kPagePositions) + last % kPagePositions / kBlock * kTileWeights;
  for (int64_t panel = 0; panel < shape_.value_width() / kPanel; ++panel) {
    uint16_t* tile = values + panel * kPageTiles * kTileWeights;
    int64_t k = last % kBlock + 1;
    if (k % 2 == 1 && k < kBlock)
      for (int64_t n = 0; n < kPanel; ++n) tile[k / 2 * 32 + n * 2 + 1] = 0;
    k = (k + 1) / 2;
    if (k < kBlock / 2) std::memset(tile + k * 32, 0, static_cast<size_t>(kBlock / 2 - k) * 64);
  }
}

PagedAttention::ItemRange PagedAttention::find_range(const KvCache& cache,
                                                     const AttentionPlace& place, int64_t wave,
                                                     int64_t item) const {
  const int64_t kv_head = item / passes(wave);
  const Pass& pass = plan_.passes(wave)[static_cast<size_t>(item % passes(wave))];
  const SequenceRows& rows = sequences_[static_cast<size_t>(pass.sequence)];
  const int64_t chunk = pass.chunk * kChunkPositions, first_position = rows.start + pass.first;
  const int64_t last_position = first_position + pass.count - 1;
  const int64_t end = std::min(place.reach.end(rows, last_position), chunk + kChunkPositions);
  const KvView all = cache.view(rows.sequence, place.cache_layer, kv_head);
  const bool is_chosen = rows.choice != nullptr && place.first_strip != kNoStrip;
  const int64_t strip = is_chosen ? place.first_strip + kv_head : kNoStrip;
  const int64_t first = is_chosen ? rows.choice->begin_of_strip(strip) * kPagePositions
                                  : place.reach.begin(first_position);
  return {pass,
          kv_head,
          is_chosen ? all.through(*rows.choice, strip) : all,
          first_position,
          std::max(first, chunk) / kBlock * kBlock,
          (end + kBlock - 1) / kBlock * kBlock};
}

KvPages PagedAttention::list_pages(const ItemRange& range, KvView::Page page, int64_t width,
                                   PageList& pages) {
  const int64_t first = range.begin / kPagePositions, start = first * kPagePositions;
  for (int64_t at = start; at < range.end; at += kPagePositions)
    pages[static_cast<size_t>((at - start) / kPagePositions)] =
        (range.view.*page)(at / kPagePositions);
  return {pages.data(), range.begin - start, range.end - start, width};
}

KvPages PagedAttention::keys_of(const ItemRange& range, PageList& pages) const {
  return list_pages(range, &KvView::keys, shape_.key_tiles() * kBlock, pages);
}

KvPages PagedAttention::values_of(const ItemRange& range, PageList& pages) const {
  return list_pages(range, &KvView::values, shape_.value_width(), pages);
}

void PagedAttention::run(const KvCache& cache, const AttentionPlace& place, int64_t wave,
                         int64_t first, int64_t last, int thread) {
  const int64_t threads = std::ssize(scores_), group = shape_.group();
  auto* const scores = reinterpret_cast<float*>(scores_[static_cast<size_t>(thread)].data());
  uint8_t* const weights = weights_[static_cast<size_t>(thread)].data();
  PageList keys, values, next_keys;
  for (int64_t item = first; item < last; ++item) {
    const ItemRange now = find_range(cache, place, wave, item);
    PagesAhead ahead;
    // After `last` this is a guess: that the other threads claim as many items first.
    const int64_t following = item + 1 < last ? item + 1 : last + (threads - 1) * (last - first);
    if (following < passes(wave) * shape_.kv_heads) {
      const ItemRange after = find_range(cache, place, wave, following);
      if (!after.is_empty()) ahead.keys = keys_of(after, next_keys);
    }
    if (now.is_empty()) {
      weigh(now, place.reach, scores, weights, ahead);
      continue;
    }
    ahead.values = values_of(now, values);
    const int64_t products = now.pass.count * group;
    const int64_t row = sequences_[static_cast<size_t>(now.pass.sequence)].first_row;
    kernels_.score_keys(keys_of(now, keys),
                        {query(row + now.pass.first, now.kv_head * group), query_bytes_, products},
                        scores, kScoreStride, ahead);
    weigh(now, place.reach, scores, weights, ahead);
    kernels_.sum_values(ahead.values, {weights, weight_bytes_, products},
                        part_values(now.pass.part, now.kv_head * group), ahead);
  }
}

// Turns scores into prepared weights; without any, zeroes the sums of values. The sums of weights
// by page come from the weights before they are prepared.
void PagedAttention::weigh(const ItemRange& range, Reach reach, float* scores, uint8_t* weights,
                           PagesAhead& ahead) {
  const Pass& pass = range.pass;
  const SequenceRows& rows = sequences_[static_cast<size_t>(pass.sequence)];
  const int64_t group = shape_.group(), count = std::max<int64_t>(range.end - range.begin, 0);
  const float scale = shape_.cap > 0.0f ? 1.0f : shape_.scale;  // soft_cap() scales too
  const int64_t first_row = sequences_[static_cast<size_t>(pass.sequence)].first_row + pass.first;
  for (int64_t i = 0; i < pass.count * group; ++i) {
    const int64_t position = range.first_position + i / group;
    const int64_t head = range.kv_head * group + i % group, part = pass.part + i / group;
    auto& sums = part_sums_[part_index(part, head)];
    sums = {-std::numeric_limits<float>::infinity(), 0.0f};
    if (count == 0) {
      std::fill_n(part_values(part, head), shape_.value_width(), 0.0f);
      continue;
    }
    const int64_t from = std::max(reach.begin(position), range.begin) - range.begin;
    const int64_t to = std::min(reach.end(rows, position), range.end) - range.begin;
    float* const row_scores = scores + i * kScoreStride;
    if (shape_.cap > 0.0f) kernels_.soft_cap(row_scores, count, shape_.scale, shape_.cap);
    const int64_t row = first_row + i / group;
    const size_t weighed = weighs(row) ? page_sums_index(row, head, pass.chunk) : 0;
    float* const page_sums = weighs(row) ? page_sums_.data() + weighed * kChunkPages : nullptr;
    if (page_sums != nullptr) std::fill_n(page_sums, kChunkPages, 0.0f);
    sums = kernels_.softmax_part(row_scores, count, from, to, scale, page_sums, &ahead);
    if (page_sums != nullptr) chunk_maxima_[weighed] = sums.maximum;
    kernels_.prepare_exact(row_scores, count, count / kBlock,
                           weights + static_cast<size_t>(i) * weight_bytes_);
  }
}

bool PagedAttention::merge(int64_t wave, int64_t row, int64_t head, std::span<const uint16_t> sinks,
                           float* out, std::span<float> page_weights) {
  const AttentionPlan::RowParts& parts = plan_.parts_of(wave, row);
  if (parts.count == 0) return false;
  Kernels::SoftmaxPart& kept = running_[static_cast<size_t>(row * shape_.heads + head)];
  Kernels::SoftmaxPart running = kept;
  int64_t next = 0;
  if (parts.is_first) {
    running = part_sums_[part_index(parts.first, head)];
    std::memcpy(out, part_values(parts.first, head),
                static_cast<size_t>(shape_.value_dim) * sizeof(float));
    next = 1;
  }
  for (int64_t i = next; i < parts.count; ++i) {
    const int64_t part = parts.first + i * parts.stride;
    if (i + kPartsAhead < parts.count) {  // may be in another core's cache
      const float* const ahead = part_values(part + kPartsAhead * parts.stride, head);
      for (int64_t d = 0; d < shape_.value_dim; d += 16) __builtin_prefetch(ahead + d);
    }
    kernels_.merge_part(out, &running, part_values(part, head), part_sums_[part_index(part, head)],
                        shape_.value_dim);
  }
  if (!parts.is_last) {
    kept = running;
    return false;
  }
  if (weighs(row)) sum_page_weights(row, head, parts.end_chunk, running, page_weights);
  if (!sinks.empty()) {
    static constexpr float kZeros[kLargestHeadDim] = {};
    const float sink = bf16_to_float(sinks[static_cast<size_t>(head)]);
    kernels_.merge_part(out, &running, kZeros, {sink, 1.0f}, shape_.value_dim);
  }
  kernels_.scale(out, 1.0f / running.sum, shape_.value_dim);
  return true;
}

size_t PagedAttention::page_sums_index(int64_t row, int64_t head, int64_t chunk) const {
  const int64_t weighed = weighed_rows_[static_cast<size_t>(row)];
  return static_cast<size_t>((weighed * shape_.heads + head) * plan_.chunk_count() + chunk);
}

void PagedAttention::sum_page_weights(int64_t row, int64_t head, int64_t chunks,
                                      Kernels::SoftmaxPart whole,
                                      std::span<float> page_weights) const {
  const auto pages = static_cast<size_t>(chunks * kChunkPages);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const size_t at = page_sums_index(row, head, chunk);
    const float factor = std::exp(chunk_maxima_[at] - whole.maximum) / whole.sum;
    const auto first = static_cast<size_t>(chunk * kChunkPages);
    const size_t end = std::min<size_t>(first + kChunkPages, page_weights.size());
    for (size_t page = first; page < end; ++page)
      page_weights[page] = factor * page_sums_[at * kChunkPages + page - first];
  }
  if (pages < page_weights.size()) std::ranges::fill(page_weights.subspan(pages), 0.0f);
}

}  // namespace specqd
