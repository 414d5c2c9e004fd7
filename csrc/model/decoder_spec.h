// The traits and the weights of a decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/layer_weights.h"
#include "model/paged_attention.h"
#include "model/rope.h"
#include "model/state_slots.h"
#include "weights/pack.h"

namespace specqd {

enum class NormKind : int { kRms = 0, kLayer = 1 };
enum class AttentionGates : int { kNone = 0, kHeads = 1, kValues = 2 };
enum class Activation : int {
  kSilu = 0,
  kGelu = 1,
  kGeluTanh = 2,
  kClampedSwiglu = 3,
  kReluSquared = 4,
  kXielu = 5
};

struct DecoderSpec {
  int64_t hidden, vocabulary;
  std::vector<AttentionShape> attentions;  // the distinct shapes among the layers
  std::vector<RopeSpec> ropes;
  float norm_epsilon;
  NormKind norm = NormKind::kRms;
  float norm_offset = 0.0f;           // added to the weights of RMS norms
  bool norms_whole_rows = false;      // the norms of queries and keys are over all heads of a row
  bool norms_after_rotation = false;  // those of heads of queries and keys
  Activation activation = Activation::kSilu;
  bool is_gated = true;
  bool is_parallel = false;  // attention and feed forward read the same residual stream
  float logit_cap = 0.0f;    // 0: none
  float embedding_scale = 1.0f, residual_scale = 1.0f, logit_scale = 1.0f;
  int64_t experts_per_token = 0;
  // The routing weights of the chosen experts add up to 1: the softmax is over these alone, or
  // their sigmoids are divided by the sum (`norm_topk_prob` of checkpoints).
  bool normalizes_routing_weights = true;
  // The outputs of attention are multiplied by sigmoids: one per head, or one per value. Their
  // arguments are the outputs of `query_key_value` after queries, keys and values.
  AttentionGates attention_gates = AttentionGates::kNone;
  StateShape states;  // of recurrent layers
};

// The weights that make the inputs of a draft head. Its rows are pairs, [embedding; hidden], with a
// norm on each half. The hidden half is made of the target's features of the tokens before, or is
// the draft head's own last hidden row. Attention reads the pair (EAGLE-3), or a projection of the
// pair becomes the residual stream (MTP).
struct HeadEntry {
  std::shared_ptr<PackedWeight> fc;  // features of a row -> hidden; null: none
  Norm features_norm;                // of all features of a row together, before fc; or none
  std::vector<Norm> tap_norms;       // of the feature of each boundary, before fc; or none
  Norm embedding_norm, hidden_norm;
  std::shared_ptr<PackedWeight> embedding;   // null: DecoderWeights::embedding
  bool keeps_normed = false;                 // the residual stream begins with the normed hidden
  bool recycles_normed = false;              // the final norm's output is the next row's hidden
  std::shared_ptr<PackedWeight> projection;  // [2 hidden] -> hidden; null: attention reads pairs
  bool hidden_first = false;                 // pairs are [hidden; embedding]
  bool blanks_first = false;                 // the first pair of a text has no embedding
};

// The weights that make the context of a block drafter (DFlash, arXiv 2602.06036): the target's
// features of a position become one row, norm(fc(features)). Each layer makes that row, without a
// norm of its own, the key and the value of the position.
struct ContextEntry {
  std::shared_ptr<PackedWeight> fc;  // features of a position -> hidden
  Norm norm;
  std::shared_ptr<PackedWeight> embedding;  // of tokens; null: DecoderWeights::embedding
};

// The weights that rank the best candidates for a row of a block once more, now that the token
// before it is known (DFlash2): logit + sum(predecessors[token] * projection(hidden) *
// successors[candidate]), where `hidden` is the input of the output head.
struct SelectorWeights {
  std::shared_ptr<PackedWeight> projection;  // [rank, hidden]
  const uint8_t* predecessors = nullptr;     // BF16 [vocabulary, rank], read in place
  const uint8_t* successors = nullptr;       // BF16 [vocabulary, rank], read in place
  int64_t vocabulary = 0;
  int64_t candidates = 0;  // per row
};

struct DecoderWeights {
  std::vector<LayerWeights> layers;
  Norm final_norm;
  std::shared_ptr<PackedWeight> head;  // the output head
  // Input embedding, BF16 [vocabulary, hidden]; null: the rows of the output head.
  const uint8_t* embedding = nullptr;
  PerLayerEmbedding per_layer;
  std::shared_ptr<const HeadEntry> entry = nullptr;       // null: rows begin with their embeddings
  std::shared_ptr<const ContextEntry> context = nullptr;  // null: no context of features
  std::shared_ptr<const SelectorWeights> selector = nullptr;  // null: no selector
};

}  // namespace specqd
