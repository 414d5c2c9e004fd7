// Attention of many sequences' rows over paged keys and values, grouped by key-value head.
//
// Scores and weighted sums are exact products (docs/exactness.md) over absolute chunks of 512
// positions; chunks are merged in order. The partial results of a long prompt's rows would take
// gigabytes: attention computes and merges those of one wave after the other. A pass skips blocks
// of 32 positions that none of its rows attends to, because they would only add zeros.
//
// Rows of a draft may attend to chosen pages only. Positions then are those in the list of these
// pages, and nothing else changes: keys and queries were rotated by their real positions before.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "model/attention_plan.h"
#include "model/kv_cache.h"
#include "runtime/pool.h"

namespace specqd {

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
constexpr size_t kWaveBytes = 64 << 20;  // of partial results

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

  // Plans a forward. `weighed_rows` has kNotWeighed for each row whose page weights are not wanted,
  // and the numbers from 0 on for the others; empty: none are wanted.
  void plan(std::span<const SequenceRows> sequences, std::span<const int32_t> weighed_rows = {});

  using PageRows = AttentionPlan::PageRows;
  std::span<const PageRows> page_rows() const { return plan_.page_rows(); }

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
  bool is_simple() const { return waves() == 1 && passes(0) == std::ssize(sequences_); }
  int64_t waves() const { return plan_.waves(); }
  // The passes of key-value head h are the items [h * passes, (h + 1) * passes) of a wave.
  int64_t passes(int64_t wave) const { return std::ssize(plan_.passes(wave)); }
  // Runs items [first, last) of a wave of a layer; all results of the wave before must be merged.
  void run(const KvCache& cache, const AttentionPlace& place, int64_t wave, int64_t first,
           int64_t last, int thread);
  // Merges what the wave has of a row's head into `out`, [value_dim]; all passes of the head must
  // have run. Returns whether `out` is now attention's output: it was the row's last wave. `sinks`
  // (BF16, by head; may be empty) are scores whose value is zero. If the row weighs pages, its last
  // wave also writes the head's softmax weights by page; pages after the row's own get zeros.
  bool merge(int64_t wave, int64_t row, int64_t head, std::span<const uint16_t> sinks, float* out,
             std::span<float> page_weights = {});

 private:
  using Pass = AttentionPlan::Pass;
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
  using PageList = std::array<const uint16_t*, kChunkPositions / kPagePositions>;

  bool weighs(int64_t row) const {
    return !weighed_rows_.empty() && weighed_rows_[static_cast<size_t>(row)] != kNotWeighed;
  }
  void sum_page_weights(int64_t row, int64_t head, int64_t chunks, Kernels::SoftmaxPart whole,
                        std::span<float> page_weights) const;
  size_t page_sums_index(int64_t row, int64_t head, int64_t chunk) const;
  int64_t query_index(int64_t row, int64_t head) const;
  size_t part_index(int64_t part, int64_t head) const;
  float* part_values(int64_t part, int64_t head);
  ItemRange find_range(const KvCache& cache, const AttentionPlace& place, int64_t wave,
                       int64_t item) const;
  static KvPages list_pages(const ItemRange& range, KvView::Page page, int64_t width,
                            PageList& pages);
  KvPages keys_of(const ItemRange& range, PageList& pages) const;
  KvPages values_of(const ItemRange& range, PageList& pages) const;
  void weigh(const ItemRange& range, Reach reach, float* scores, uint8_t* weights,
             PagesAhead& ahead);

  AttentionShape shape_;
  Reach longest_;
  const Kernels& kernels_;
  int64_t rows_at_once_;  // rows per pass, so that its scores stay in the CPU's cache
  size_t query_bytes_, weight_bytes_;
  AttentionPlan plan_;
  std::vector<SequenceRows> sequences_;
  Memory queries_, parts_;
  std::vector<Kernels::SoftmaxPart> part_sums_;
  std::vector<Kernels::SoftmaxPart> running_;  // by row and head: of the waves before
  std::vector<int32_t> weighed_rows_;
  // By weighed row, head and chunk: the greatest score, and the sums of weights by page.
  std::vector<float> chunk_maxima_, page_sums_;
  std::vector<Memory> scores_, weights_;  // by thread
};

}  // namespace specqd
