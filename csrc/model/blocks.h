// Creates blocks. A new kind of block needs one new file and one declaration here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/block.h"
#include "model/decoder_spec.h"
#include "model/rope_table.h"

namespace specqd {

// What every block is created for.
struct BlockSetting {
  const Traits& traits;
  const std::vector<RopeTable>& ropes;  // by DecoderSpec::ropes
  int64_t max_rows;                     // of a batch
};

std::unique_ptr<Block> make_attention(const LayerWeights& layer, const AttentionPlace& place,
                                      const BlockSetting& setting);
// Multi-head latent attention, absorbed.
std::unique_ptr<Block> make_latent_attention(const LayerWeights& layer, const AttentionPlace& place,
                                             const BlockSetting& setting);
// A short convolution between gates, or a short convolution followed by a delta rule. `state_layer`
// is an index among the recurrent layers.
std::unique_ptr<Block> make_short_convolution(const LayerWeights& layer, int64_t state_layer,
                                              const BlockSetting& setting);
std::unique_ptr<Block> make_delta_rule(const LayerWeights& layer, int64_t state_layer,
                                       const BlockSetting& setting);
// `inputs`: the prefix of the names under which its inputs are measured.
std::unique_ptr<Block> make_feed_forward(const FeedForward& weights, const std::string& inputs,
                                         const BlockSetting& setting);
std::unique_ptr<Block> make_experts(const LayerWeights& layer, const BlockSetting& setting);
// `inner` between two convolutions. Only blocks that add to the residual stream have them.
std::unique_ptr<Block> make_convolved(std::unique_ptr<Block> inner,
                                      const DynamicConvolution& weights,
                                      const BlockSetting& setting);
// The layer's own embedding, gated by the residual stream. `layer_index` of `layers`.
std::unique_ptr<Block> make_per_layer_input(const PerLayerInput& weights, int64_t layer_index,
                                            int64_t layers, const BlockSetting& setting);

// Blocks that run before all layers. They ignore `inputs` and `to`, and write the residual stream
// or the per-layer embeddings, for which they reserve room in the batch.
std::unique_ptr<Block> make_embedding(const DecoderWeights& weights);
std::unique_ptr<Block> make_per_layer_embedding(const PerLayerEmbedding& weights, Batch& batch);
// Features of Batch::pair_inputs instead of tokens.
std::unique_ptr<Block> make_context_entry(std::shared_ptr<const ContextEntry> weights);

}  // namespace specqd
