#include "attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "bf16.h"

namespace specqd {
namespace {

constexpr int64_t kRowsAtOnce = 32;  // queries of one product: rows times heads of the group
constexpr int64_t kPageTiles = kPagePositions / kBlock;

int64_t first_visible(int64_t position, int64_t window) {
  return window > 0 ? std::max<int64_t>(position + 1 - window, 0) : 0;
}

}  // namespace

Attention::Attention(AttentionShape shape, const Kernels& kernels, int threads, int64_t max_rows)
    : shape_(shape),
      kernels_(kernels),
      rows_at_once_(std::max<int64_t>(1, kRowsAtOnce / shape.group())),
      query_bytes_(kernels.exact_row_bytes(shape.key_tiles())),
      weight_bytes_(kernels.exact_row_bytes(kChunkPositions / kBlock)),
      queries_(static_cast<size_t>(max_rows * shape.heads) * query_bytes_) {
  const auto products = static_cast<size_t>(rows_at_once_ * shape.group());
  for (int i = 0; i < threads; ++i) {
    scores_.emplace_back(products * kChunkPositions * sizeof(float));
    weights_.emplace_back(products * weight_bytes_);
  }
}

void Attention::plan(std::span<const SequenceRows> sequences, int64_t longest_window) {
  sequences_.assign(sequences.begin(), sequences.end());
  passes_.clear();
  row_parts_.clear();
  rows_ = 0;
  int64_t parts = 0;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const SequenceRows& rows = sequences_[s];
    for (int64_t first = 0; first < rows.count; first += rows_at_once_) {
      const int64_t count = std::min(rows_at_once_, rows.count - first);
      const int64_t begin = first_visible(rows.start + first, longest_window) / kChunkPositions;
      const int64_t end = (rows.start + first + count - 1) / kChunkPositions + 1;
      for (int64_t i = 0; i < count; ++i) row_parts_.push_back({parts + i, count, end - begin});
      for (int64_t chunk = begin; chunk < end; ++chunk, parts += count)
        passes_.push_back({static_cast<int64_t>(s), first, count, chunk, parts});
    }
    rows_ += rows.count;
  }
  part_count_ = parts;
  const auto needed = static_cast<size_t>(parts * shape_.heads);
  const size_t bytes = needed * static_cast<size_t>(shape_.value_width()) * sizeof(float);
  if (bytes > parts_.size()) parts_ = Memory(bytes + bytes / 2);
  if (needed > part_sums_.size()) part_sums_.resize(needed);
}

int64_t Attention::query_index(int64_t row, int64_t head) const {
  const int64_t group = shape_.group();
  return (head / group * rows_ + row) * group + head % group;
}

uint8_t* Attention::query(int64_t row, int64_t head) {
  return queries_.data() + static_cast<size_t>(query_index(row, head)) * query_bytes_;
}

// As for queries: the products of a pass and a key-value head are consecutive.
size_t Attention::part_index(int64_t part, int64_t head) const {
  const int64_t group = shape_.group();
  return static_cast<size_t>((head / group * part_count_ + part) * group + head % group);
}

float* Attention::part_values(int64_t part, int64_t head) {
  return reinterpret_cast<float*>(parts_.data()) +
         part_index(part, head) * static_cast<size_t>(shape_.value_width());
}

void Attention::write(const KvCache& cache, int sequence, int64_t layer, int64_t kv_head,
                      int64_t position, const float* key, const float* value) const {
  uint16_t bits[kLargestHeadDim];
  const int64_t page = position / kPagePositions, at = position % kPagePositions;
  kernels_.round_bf16_finite(key, shape_.head_dim, bits);
  uint16_t* keys = cache.keys(sequence, page, layer, kv_head) +
                   at / kPanel * shape_.key_tiles() * kTileWeights + at % kPanel * 2;
  for (int64_t d = 0; d < shape_.head_dim; d += 2)
    std::memcpy(keys + d / kBlock * kTileWeights + d % kBlock / 2 * 32, bits + d, 4);
  kernels_.round_bf16_finite(value, shape_.head_dim, bits);
  uint16_t* values = cache.values(sequence, page, layer, kv_head) + at / kBlock * kTileWeights +
                     at % kBlock / 2 * 32 + at % 2;
  for (int64_t d = 0; d < shape_.head_dim; ++d)
    values[d / kPanel * kPageTiles * kTileWeights + d % kPanel * 2] = bits[d];
}

void Attention::clear_after(const KvCache& cache, int sequence, int64_t layer, int64_t kv_head,
                            int64_t last) const {
  uint16_t* values = cache.values(sequence, last / kPagePositions, layer, kv_head) +
                     last % kPagePositions / kBlock * kTileWeights;
  for (int64_t panel = 0; panel < shape_.value_width() / kPanel; ++panel) {
    uint16_t* tile = values + panel * kPageTiles * kTileWeights;
    int64_t k = last % kBlock + 1;
    if (k % 2 == 1 && k < kBlock)
      for (int64_t n = 0; n < kPanel; ++n) tile[k / 2 * 32 + n * 2 + 1] = 0;
    k = (k + 1) / 2;
    if (k < kBlock / 2) std::memset(tile + k * 32, 0, static_cast<size_t>(kBlock / 2 - k) * 64);
  }
}

void Attention::run(const KvCache& cache, int64_t layer, int64_t window, int64_t pass_index,
                    int64_t kv_head, int thread) {
  const Pass& pass = passes_[static_cast<size_t>(pass_index)];
  const SequenceRows& rows = sequences_[static_cast<size_t>(pass.sequence)];
  const int64_t group = shape_.group(), products = pass.count * group;
  const int64_t chunk_start = pass.chunk * kChunkPositions;
  const int64_t first_position = rows.start + pass.first;
  // Positions of the chunk that any row sees, in whole blocks.
  const int64_t begin =
      std::clamp<int64_t>(first_visible(first_position, window) - chunk_start, 0, kChunkPositions) /
      kBlock * kBlock;
  const int64_t end =
      (std::min(first_position + pass.count - chunk_start, kChunkPositions) + kBlock - 1) / kBlock *
      kBlock;

  auto* const scores = reinterpret_cast<float*>(scores_[static_cast<size_t>(thread)].data());
  uint8_t* const weights = weights_[static_cast<size_t>(thread)].data();
  const PreparedRows queries{query(rows.first_row + pass.first, kv_head * group), query_bytes_,
                             products};
  for (int64_t i = 0; i < products && begin < end; ++i)
    std::memset(scores + i * kChunkPositions + begin, 0,
                static_cast<size_t>(end - begin) * sizeof(float));
  for (int64_t at = begin; at < end; at += kPanel) {
    const int64_t position = chunk_start + at;
    const uint16_t* keys = cache.keys(rows.sequence, position / kPagePositions, layer, kv_head) +
                           position % kPagePositions / kPanel * shape_.key_tiles() * kTileWeights;
    kernels_.accumulate_plain(keys, shape_.key_tiles(), queries, scores + at, kChunkPositions);
  }

  const float scale = shape_.cap > 0.0f ? 1.0f : shape_.scale;  // of scores that are not capped yet
  for (int64_t i = 0; i < products; ++i) {
    const int64_t position = first_position + i / group, head = kv_head * group + i % group;
    const int64_t part = pass.part + i / group;
    const int64_t from = std::max(first_visible(position, window) - chunk_start, begin);
    const int64_t to = std::min(position + 1 - chunk_start, end);
    float* const row_scores = scores + i * kChunkPositions + begin;
    auto& sums = part_sums_[part_index(part, head)];
    sums = {-std::numeric_limits<float>::infinity(), 0.0f};
    if (begin < end && shape_.cap > 0.0f)
      kernels_.soft_cap(row_scores, end - begin, shape_.scale, shape_.cap);
    if (begin < end)
      sums = kernels_.softmax_part(row_scores, end - begin, from - begin, to - begin, scale);
    kernels_.prepare_exact(row_scores, std::max<int64_t>(end - begin, 0),
                           std::max<int64_t>(end - begin, 0) / kBlock,
                           weights + static_cast<size_t>(i) * weight_bytes_);
    std::memset(part_values(part, head), 0,
                static_cast<size_t>(shape_.value_width()) * sizeof(float));
  }

  const int64_t width = shape_.value_width();
  for (int64_t at = begin; at < end;) {
    const int64_t position = chunk_start + at, in_page = position % kPagePositions / kBlock;
    const int64_t tiles = std::min(kPageTiles - in_page, (end - at) / kBlock);
    const uint16_t* values = cache.values(rows.sequence, position / kPagePositions, layer, kv_head);
    const PreparedRows x{
        weights + static_cast<size_t>((at - begin) / kBlock) * kernels_.exact_block_bytes,
        weight_bytes_, products};
    for (int64_t panel = 0; panel < width / kPanel; ++panel)
      kernels_.accumulate_plain(values + (panel * kPageTiles + in_page) * kTileWeights, tiles, x,
                                part_values(pass.part, kv_head * group) + panel * kPanel, width);
    at += tiles * kBlock;
  }
}

void Attention::merge(int64_t row, int64_t head, std::span<const uint16_t> sinks, float* out) {
  const RowParts& parts = row_parts_[static_cast<size_t>(row)];
  Kernels::SoftmaxPart running = part_sums_[part_index(parts.first, head)];
  std::memcpy(out, part_values(parts.first, head),
              static_cast<size_t>(shape_.head_dim) * sizeof(float));
  for (int64_t i = 1; i < parts.count; ++i) {
    const int64_t part = parts.first + i * parts.stride;
    kernels_.merge_part(out, &running, part_values(part, head), part_sums_[part_index(part, head)],
                        shape_.head_dim);
  }
  if (!sinks.empty()) {
    static constexpr float kZeros[kLargestHeadDim] = {};
    const float sink = bf16_to_float(sinks[static_cast<size_t>(head)]);
    kernels_.merge_part(out, &running, kZeros, {sink, 1.0f}, shape_.head_dim);
  }
  kernels_.scale(out, 1.0f / running.sum, shape_.head_dim);
}

}  // namespace specqd
