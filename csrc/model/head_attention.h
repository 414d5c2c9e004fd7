// The part of attention that all attention blocks share. It takes the queries, keys and values of
// all rows, normalises and rotates them, writes keys and values into the cache, and attends.
#pragma once

#include <cstdint>

#include "model/block.h"
#include "model/rope_table.h"

namespace specqd {

class HeadAttention {
 public:
  // Takes norms, window, sinks and rope from `layer`.
  HeadAttention(const LayerWeights& layer, const AttentionPlace& place, const Traits& traits,
                const std::vector<RopeTable>& ropes);

  const AttentionShape& shape() const { return shape_; }
  int64_t num_gates() const { return shape_.heads * gates_per_head_; }  // per row

  // `heads` holds queries, keys and values, [rows][shape.outputs()]; the outputs of attention
  // replace the queries. `gates`, [rows][num_gates()], are applied to the outputs; null: there are
  // none. Every thread calls it; it ends with a barrier.
  void run(Team& team, Batch& batch, float* heads, const float* gates) const;
  // Only writes keys and values into the cache; reads no queries, and attends to nothing.
  void write_cache(Team& team, Batch& batch, float* heads) const;

  int64_t cache_words(std::span<const SequenceRows> sequences) const;

 private:
  // The arguments of one call of run().
  struct Run {
    Batch& batch;
    PagedAttention& attention;
    float* heads;
    const float* gates;
    bool has_queries = true;
  };

  void norm_whole_rows(Team& team, const Run& run) const;
  void norm_heads(const Norm& norm, int64_t dim, float* values, int64_t first_head,
                  int64_t count) const;
  void write_heads(const Run& run, int64_t kv_head, const PagedAttention::PageRows& part) const;
  void write_all(Team& team, const Run& run) const;
  void write_queries(const Run& run, int64_t kv_head, int64_t row, int64_t position) const;
  void write_key_value(const Run& run, int64_t kv_head, int64_t row, int64_t position,
                       const KvView& view) const;
  void apply_gates(const float* gates, float* out) const;
  void merge_head(const Run& run, int64_t wave, int64_t head,
                  const PagedAttention::PageRows& part) const;

  const Traits& traits_;
  const AttentionShape shape_;
  const RopeTable* rope_;  // null: no rotation
  const AttentionPlace place_;
  bool writes_cache_;  // else it reads the keys and values of an earlier layer
  bool values_are_keys_;
  int64_t gates_per_head_;  // 0, 1, or one for each value
  Norm query_norm_, key_norm_, value_norm_;
  Norm latent_norm_;  // of the last part of a key, before it becomes the value; or none
  Vector sinks_;
};

}  // namespace specqd
