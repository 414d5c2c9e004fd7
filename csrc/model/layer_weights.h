// The weights of one layer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "weights/pack.h"

namespace specqd {

// The precision of the weights that a forward uses.
enum class Precision : int { kExact = 0, kFp4 = 1 };

using Vector = std::vector<uint16_t>;  // BF16; empty if the model has none

// The weight and bias of a norm. Without a weight there is no norm.
struct Norm {
  Vector weight, bias;
  bool exists() const { return !weight.empty(); }
};

// Two products with an activation between them. `gate_up` interleaves the gate and the up
// projection, or is the up projection alone.
struct FeedForward {
  std::shared_ptr<PackedWeight> gate_up, down;
  Vector gate_bias, up_bias, down_bias;
};

size_t bytes_of(const PackedWeight& weight, Precision precision);
size_t bytes_of(const FeedForward& weights, Precision precision);

constexpr int64_t kLargestDeltaDim = 256;  // of a recurrent layer's heads

// The delta rule of a recurrent layer: `query_key_value` holds queries, keys, values and gates.
struct DeltaWeights {
  std::shared_ptr<PackedWeight> rates;     // betas, then decays, one of each per value head
  std::vector<float> log_rate, step_bias;  // of decays, by value head
  std::vector<float> norm;                 // [value_dim]
};

// A latent layer's attention beside its first product, whose outputs are queries, or their latent,
// and then a key: its part with positions, and the latent of all heads' keys and values. A head's
// part of `keys` makes of its query what it asks of the latent; its part of `values` makes its
// output of the latents that attention has summed.
struct LatentWeights {
  std::shared_ptr<PackedWeight> queries;  // of the queries' latent; null: they have none
  Norm query_norm, norm;                  // of both latents
  std::shared_ptr<PackedWeight> keys;     // [heads * latent, plain part of a query]
  std::shared_ptr<PackedWeight> values;   // [heads * outputs, latent]
};

// The last addition of a layer to the residual stream x: norm(projection(act(gate(x)) * e)), where
// e is the layer's part of the token's per-layer embedding.
struct PerLayerInput {
  std::shared_ptr<PackedWeight> gate, projection;  // null: the model has no such input
  Norm post_norm;
  bool exists() const { return gate != nullptr; }
};

// The per-layer embedding of a token that enters as x, [layers][width]:
// (norm(projection(x) / sqrt(hidden)) + sqrt(width) * table[token]) / sqrt(2), the norm by layer.
struct PerLayerEmbedding {
  const uint8_t* table = nullptr;            // BF16 [vocabulary, layers * width], read in place
  std::shared_ptr<PackedWeight> projection;  // [layers * width, hidden]; null: there is none
  Norm norm;                                 // [width]
  bool exists() const { return projection != nullptr; }
  int64_t width() const { return std::ssize(norm.weight); }
};

// What a layer with experts has beside them. A row adds norm(sum of its experts' outputs); and of
// the shared feed forward, which every row passes through, norm(output) or sigmoid(gate) * output.
struct Mixture {
  // A row for each expert, then one for the gate of the shared feed forward, if it has one.
  std::shared_ptr<PackedWeight> router;
  Vector router_bias;
  FeedForward shared;  // null: there is none
  // Norms of the inputs of experts and router; absent: those of the shared feed forward, and those
  // of the experts.
  Norm experts_norm, router_norm;
  Norm experts_post_norm, shared_post_norm;
  float score_scale = 1.0f;
  std::vector<float> expert_scales;  // by expert; empty: all are 1
  // Choice by the sigmoids of scores plus these, by expert; empty: by scores. Of `groups`, those
  // `chosen_groups` count whose best two have the largest sums. Shares are the sigmoids, over their
  // sum and `weight_sum_epsilon` where they are shares of the chosen.
  std::vector<float> correction_bias;
  int64_t groups = 1, chosen_groups = 1;
  float weight_sum_epsilon = 0.0f;
  bool takes_sigmoids() const { return !correction_bias.empty(); }
  bool has_shared() const { return shared.down != nullptr; }
};

struct LayerWeights {
  Norm attention_norm, attention_post_norm, feed_forward_norm, feed_forward_post_norm;
  // Norms of heads (one weight for all or one per head) or of whole rows; values: heads alone.
  Norm query_norm, key_norm, value_norm;
  // Rows of queries, then of the layer's own keys, then of its own values.
  std::shared_ptr<PackedWeight> query_key_value, output;
  Vector query_key_value_bias, output_bias;
  Vector sinks;                            // by head: a score whose value is zero
  std::vector<FeedForward> feed_forwards;  // one, or the experts of the mixture
  std::shared_ptr<Mixture> mixture;        // null: no experts
  int64_t window = 0;                      // positions that a row sees, its own included; 0: all
  int rope = 0;                            // index into DecoderSpec::ropes; -1: none
  int attention = 0;                       // index into DecoderSpec::attentions
  int kv_layer = -1;  // the earlier layer whose keys and values it reads; -1: it has its own
  bool values_are_keys = false;  // their last part, before the norm of keys and rotation
  PerLayerInput per_layer;
  float output_scale = 1.0f;  // of the residual stream behind the layer; 1 without a last norm
  // A recurrent layer: a short convolution, [taps][channels], whose outputs enter a delta rule. Or
  // there is none: `query_key_value` then holds gates of its inputs, gates of its outputs, values.
  Vector convolution, convolution_bias;
  std::shared_ptr<DeltaWeights> delta;
  std::shared_ptr<LatentWeights> latent;  // null: queries, keys and values are products
  bool is_recurrent() const { return !convolution.empty(); }
};

}  // namespace specqd
