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
  std::vector<float> curve;  // of xIELU: the fields of Xielu, in their order; empty: none
};

size_t bytes_of(const PackedWeight& weight, Precision precision);
size_t bytes_of(const FeedForward& weights, Precision precision);

constexpr int64_t kLargestDeltaDim = 256;  // head size of a delta rule

// The delta rule of a recurrent layer, whose LayerWeights::query_key_value computes queries, keys,
// values and gates.
struct DeltaWeights {
  std::shared_ptr<PackedWeight> rates;     // betas, then decays: one of each per value head
  std::vector<float> log_rate, step_bias;  // of decays, per value head
  std::vector<float> norm;                 // [value_dim]
};

// The weights of latent attention, except its first and its output product. The first product
// computes the queries, or their latent, and then one key: the rotated part, and the latent of the
// keys and values of all heads. A head multiplies its query by its part of `keys`, so it attends
// directly to the latent. It multiplies the sum of latents by its part of `values`, which gives its
// output.
struct LatentWeights {
  std::shared_ptr<PackedWeight> queries;  // from the queries' latent; null: there is no such latent
  Norm query_norm, norm;                 // of the queries' latent; of the latent of keys and values
  std::shared_ptr<PackedWeight> keys;    // [heads * latent, unrotated part of a query]
  std::shared_ptr<PackedWeight> values;  // [heads * outputs, latent]
};

// The last addition of a layer to the residual stream x: norm(projection(act(gate(x)) * e)), where
// e is the layer's part of the token's per-layer embedding.
struct PerLayerInput {
  std::shared_ptr<PackedWeight> gate, projection;  // null: the model has no such input
  Norm post_norm;
  bool exists() const { return gate != nullptr; }
};

// The per-layer embedding of a token, [layers][width], where x is the embedding of the token:
// (norm(projection(x) / sqrt(hidden)) + sqrt(width) * table[token]) / sqrt(2). The norm applies to
// each layer's part alone.
struct PerLayerEmbedding {
  const uint8_t* table = nullptr;            // BF16 [vocabulary, layers * width], read in place
  std::shared_ptr<PackedWeight> projection;  // [layers * width, hidden]; null: there is none
  Norm norm;                                 // [width]
  bool exists() const { return projection != nullptr; }
  int64_t width() const { return std::ssize(norm.weight); }
};

// The weights and traits of a layer with experts, except the experts themselves. A row adds
// norm(sum of its experts' outputs) to the residual stream. If there is a shared feed forward,
// every row passes through it and also adds norm(output) or sigmoid(gate) * output.
struct Mixture {
  // One row per expert, then one for the gate of the shared feed forward, if it is gated.
  std::shared_ptr<PackedWeight> router;
  Vector router_bias;
  FeedForward shared;  // null: there is none
  // Norms of the inputs of the experts and of the router. If `experts_norm` is absent, the experts
  // read the inputs of the shared feed forward. If `router_norm` is absent, the router reads the
  // inputs of the experts.
  Norm experts_norm, router_norm;
  Norm experts_post_norm, shared_post_norm;
  float score_scale = 1.0f;
  std::vector<float> expert_scales;  // factors on routing weights, per expert; empty: all are 1
  // Per expert. If it is empty, the router chooses experts by their scores. Otherwise it chooses
  // them by sigmoid(score) + bias, among the `chosen_groups` of `groups` whose best two have the
  // largest sums; the routing weights are then the sigmoids without the bias. If the spec
  // normalises routing weights, they are divided by their sum plus `weight_sum_epsilon`.
  std::vector<float> correction_bias;
  int64_t groups = 1, chosen_groups = 1;
  float weight_sum_epsilon = 0.0f;
  bool takes_sigmoids() const { return !correction_bias.empty(); }
  bool has_shared() const { return shared.down != nullptr; }
};

// A causal convolution of the inputs and one of the outputs of a part of a layer, over the rows of
// a forward (DFlash2). The coefficient of a row for a tap and a channel is that of `base`, plus
// what `projection` makes of the row's inputs for the group of the channel.
struct DynamicConvolution {
  std::shared_ptr<PackedWeight> projection;  // [2 * taps * groups, hidden]; null: none
  Vector base;  // [2][taps][hidden]: for inputs, then for outputs; tap t is the row t rows before
  int64_t taps = 0, groups = 0;
  bool exists() const { return projection != nullptr; }
};

struct LayerWeights {
  Norm attention_norm, attention_post_norm, feed_forward_norm, feed_forward_post_norm;
  // Norms of heads (one weight for all heads, or one per head) or of whole rows. The norm of values
  // is always one of heads.
  Norm query_norm, key_norm, value_norm;
  // The rows for queries, then those for keys and values, if the layer computes its own.
  std::shared_ptr<PackedWeight> query_key_value, output;
  Vector query_key_value_bias, output_bias;
  Vector sinks;                            // per head: a score whose value is zero
  std::vector<FeedForward> feed_forwards;  // one, or the experts of the mixture
  std::shared_ptr<Mixture> mixture;        // null: no experts
  int64_t window = 0;     // positions that a row attends to, including its own; 0: all
  bool is_causal = true;  // else a row attends to the later rows of its forward too
  int rope = 0;           // index into DecoderSpec::ropes; -1: none
  int attention = 0;      // index into DecoderSpec::attentions
  int kv_layer = -1;      // the earlier layer whose keys and values this one reads; -1: its own
  // A value is the last part of its key, before the norm of keys and the rotation.
  bool values_are_keys = false;
  PerLayerInput per_layer;
  // Factor on the residual stream after the layer; 1 if the layer ends without a post norm.
  float output_scale = 1.0f;
  // The short convolution of a recurrent layer, [kernel width][channels]; empty: not recurrent. Its
  // outputs are the inputs of the delta rule. Without a delta rule, `query_key_value` computes the
  // gates of the convolution's inputs, the gates of its outputs, and the values.
  Vector convolution, convolution_bias;
  std::shared_ptr<DeltaWeights> delta;
  std::shared_ptr<LatentWeights> latent;  // null: queries, keys and values are products
  DynamicConvolution attention_convolution, feed_forward_convolution;
  bool is_recurrent() const { return !convolution.empty(); }
};

}  // namespace specqd
