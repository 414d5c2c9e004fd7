// One layer of a decoder: blocks, norms and residual additions, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/blocks.h"

namespace specqd {

// Where the layers of a decoder keep keys, values and states.
struct CachePlan {
  explicit CachePlan(const DecoderSpec& spec, std::span<const LayerWeights> layers);

  KvShape kv;
  StateShape states;
  std::vector<AttentionPlace> places;  // by layer; if it is recurrent, `cache_layer` is its state
  std::vector<AttentionKind> kinds;    // of attention
  std::vector<int64_t> strip_heads;    // query heads of each strip
  std::vector<int64_t> strip_words;    // of the keys and values of each strip, per position
  int64_t longest_window = 0;          // of all layers; 0: one has no window
  int64_t first_reader = 0;  // no layer from this one on has keys, values or states of its own
};

class Layer {
 public:
  // If `reads_pairs`, attention reads Batch::pairs.
  Layer(const LayerWeights& weights, int64_t index, const CachePlan& plan, bool reads_pairs,
        const BlockSetting& setting);

  void run(Team& team, Batch& batch) const;
  // Only writes keys and values of the residual stream, without a norm, into the cache.
  void write_cache(Team& team, Batch& batch) const;

  std::vector<const Block*> blocks() const;
  int64_t cache_words(std::span<const SequenceRows> sequences) const {
    return mixer_->cache_words(sequences);
  }

 private:
  bool is_parallel_, reads_pairs_;
  float output_scale_;
  Norm mixer_norm_, mixer_post_norm_, feed_forward_norm_, feed_forward_post_norm_;
  Norm per_layer_post_norm_;
  std::unique_ptr<Block> mixer_;         // mixes positions: attention, or a recurrence
  std::unique_ptr<Block> feed_forward_;  // or experts
  std::unique_ptr<Block> per_layer_;     // null: the model has no per-layer embeddings
};

}  // namespace specqd
