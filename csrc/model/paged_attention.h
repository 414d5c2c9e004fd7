// Attention of many sequences' rows over paged keys and values, grouped by key-value head.
//
// Scores and weighted sums are exact products (docs/exactness.md) over absolute chunks of 512
// positions; chunks are merged in order. A pass skips blocks of 32 positions that none of its rows
// attends to, because they would only add zeros.
//
// Rows of a draft may attend to chosen pages only. Positions then are those in the list of these
// pages, and nothing else changes: keys and queries were rotated by their real positions before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "model/kv_cache.h"
#include "runtime/pool.h"

namespace specqd {

// Consecutive rows of one sequence in a batch: batch rows [first_row, first_row + count) are
// positions [start, start + count).
struct SequenceRows {
  int sequence;
  int64_t start;
  int64_t count;
  int64_t first_row;
  const PageChoice* choice = nullptr;  // null: they attend to all pages
};

// The positions to which the rows of a layer attend: the last `window` up to their own (0: all),
// and those of the later rows of their sequence in the forward unless the layer is causal.
struct Reach {
  int64_t window = 0;
  bool is_causal = true;
};

// What layers have in common whose attention is planned together: the index of their shape, whether
// they have windows, and whether they are causal.
struct AttentionKind {
  int64_t shape;
  Reach longest;  // includes the reach of each layer
};

constexpr int64_t kNoStrip = -1;

// The place of a layer among the others. A strip is a key-value head of a layer without a window.
struct AttentionPlace {
  size_t kind;          // index of its AttentionKind
  int64_t cache_layer;  // index among the layers of the KV cache
  Reach reach;
  int64_t first_strip = kNoStrip;  // of its key-value heads; kNoStrip: it has a window
};

constexpr int64_t kLargestHeadDim = 1024;
constexpr int32_t kNotWeighed = -1;

struct AttentionShape {
  int64_t heads, kv_heads;
  int64_t head_dim, value_dim;  // of queries and keys; of values, at most head_dim
  float scale;                  // factor on scores
  float cap;                    // soft cap of scaled scores; 0: none
  int64_t group() const { return heads / kv_heads; }
  int64_t queries() const { return heads * head_dim; }
  int64_t keys() const { return kv_heads * head_dim; }
  int64_t values() const { return kv_heads * value_dim; }
  int64_t outputs() const { return queries() + keys() + values(); }  // of a row
  int64_t key_tiles() const { return (head_dim + kBlock - 1) / kBlock; }
  int64_t value_width() const { return (value_dim + kPanel - 1) / kPanel * kPanel; }
};

class PagedAttention {
 public:
  // `longest` includes the reach of each layer of the kind.
  PagedAttention(AttentionShape shape, Reach longest, const Kernels& kernels, int threads,
                 int64_t max_rows);

  const AttentionShape& shape() const { return shape_; }

  // Plans a forward: splits it into passes. A pass is a few rows of one sequence, and one chunk.
  // `weighed_rows` has kNotWeighed for each row whose page weights are not wanted; empty: for all.
  void plan(std::span<const SequenceRows> sequences, std::span<const int32_t> weighed_rows = {});

  // Batch rows [first, last) of one sequence, whose positions share a page.
  struct PageRows {
    int64_t sequence;  // index into the planned sequences
    int64_t first, last;
  };
  std::span<const PageRows> page_rows() const { return page_rows_; }

  // The prepared query of a row's head, [exact_row_bytes(key_tiles)]. Heads of one key-value head
  // are contiguous, so that they are the rows of one product.
  uint8_t* query(int64_t row, int64_t head);

  // Writes a key and a value (fp32, [head_dim] and [value_dim]) of a position into the cache.
  void write(const KvView& view, int64_t position, const float* key, const float* value) const;
  // Zeroes the values after position `last` in its block of 32, because a product reads whole
  // blocks.
  void clear_after(const KvView& view, int64_t last) const;

  // Whether each sequence is one pass, so that it is enough to divide key-value heads among
  // threads.
  bool is_simple() const { return passes_.size() == sequences_.size(); }
  // The passes of key-value head h are the items [h * passes, (h + 1) * passes). Passes of one
  // chunk are consecutive, so that its keys and values stay in the CPU's cache.
  int64_t passes() const { return static_cast<int64_t>(passes_.size()); }
  // Runs items [first, last) of a layer.
  void run(const KvCache& cache, const AttentionPlace& place, int64_t first, int64_t last,
           int thread);
  // Writes attention's output of a row's head, [value_dim]; all passes of the head must have run.
  // `sinks` (BF16, by head; may be empty) are scores whose value is zero. If the row weighs pages,
  // also writes the head's softmax weights by page; pages after the row's own get zeros.
  void merge(int64_t row, int64_t head, std::span<const uint16_t> sinks, float* out,
             std::span<float> page_weights = {});

 private:
  struct Pass {
    int64_t sequence;  // index into sequences_
    int64_t first;     // row within the sequence
    int64_t count;
    int64_t chunk;
    int64_t part;  // index of its first row's partial result
  };
  struct RowParts {
    int64_t first;  // index of the row's first partial result; the others follow at `stride`
    int64_t stride, count;
  };
  // The positions that an item reads: [begin, end), the whole blocks of a chunk to which some row
  // attends.
  struct ItemRange {
    const Pass& pass;
    int64_t kv_head;
    KvView view;
    int64_t first_position;  // of the pass's rows
    int64_t begin, end;
    bool is_empty() const { return begin >= end; }
  };

  bool weighs(int64_t row) const {
    return !weighed_rows_.empty() && weighed_rows_[static_cast<size_t>(row)] != kNotWeighed;
  }
  void sum_page_weights(const RowParts& parts, int64_t head, Kernels::SoftmaxPart whole,
                        std::span<float> page_weights) const;
  void plan_passes(const SequenceRows& rows);
  int64_t query_index(int64_t row, int64_t head) const;
  size_t part_index(int64_t part, int64_t head) const;
  float* part_values(int64_t part, int64_t head);
  ItemRange find_range(const KvCache& cache, const AttentionPlace& place, int64_t item) const;
  const uint16_t* keys_at(const ItemRange& range, int64_t position) const;
  const uint16_t* values_at(const ItemRange& range, int64_t position) const;
  void score(const ItemRange& range, float* scores);
  void weigh(const ItemRange& range, Reach reach, float* scores, uint8_t* weights);
  void sum_values(const ItemRange& range, const uint8_t* weights, const uint16_t* next);

  AttentionShape shape_;
  Reach longest_;
  const Kernels& kernels_;
  int64_t rows_at_once_;  // rows per pass, so that its scores stay in the CPU's cache
  size_t query_bytes_, weight_bytes_;
  int64_t rows_ = 0, part_count_ = 0;
  std::vector<SequenceRows> sequences_;
  std::vector<PageRows> page_rows_;
  std::vector<Pass> passes_;
  std::vector<RowParts> row_parts_;
  Memory queries_, parts_;
  int small_forwards_ = 0;  // in a row
  std::vector<Kernels::SoftmaxPart> part_sums_;
  std::vector<int32_t> weighed_rows_;
  std::vector<float> page_sums_;          // by part: of its weights, by page of its chunk
  std::vector<Memory> scores_, weights_;  // by thread
};

}  // namespace specqd
