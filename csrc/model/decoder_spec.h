// What a decoder is made of: its traits and its weights.
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
enum class Activation : int { kSilu = 0, kGelu = 1, kGeluTanh = 2, kClampedSwiglu = 3 };

struct DecoderSpec {
  int64_t hidden, vocabulary;
  std::vector<AttentionShape> attentions;  // distinct ones of the layers
  std::vector<RopeSpec> ropes;
  float norm_epsilon;
  NormKind norm = NormKind::kRms;
  float norm_offset = 0.0f;       // added to the weights of RMS norms
  bool norms_whole_rows = false;  // of queries and of keys
  Activation activation = Activation::kSilu;
  bool is_gated = true;
  bool is_parallel = false;  // attention and feed forward read the same residual stream
  float logit_cap = 0.0f;    // 0: none
  float embedding_scale = 1.0f, residual_scale = 1.0f, logit_scale = 1.0f;
  int64_t experts_per_token = 0;
  bool normalizes_routing_weights =
      true;                      // router softmax over the chosen experts only, else over all
  bool gates_attention = false;  // by the sigmoids of the rows after queries, keys and values
  StateShape states;             // of recurrent layers
};

// The entry of a head, whose rows are pairs: a token, and what the target or the head itself made
// of the tokens before it. A pair is [embedding; hidden], each normed. Attention reads it
// (EAGLE-3), or its projection is the layer's residual stream (MTP).
struct HeadEntry {
  std::shared_ptr<PackedWeight> fc;  // a row's features, [taps of the target] -> hidden; null: none
  Norm features_norm;                // of all features of a row, before fc; or none
  std::vector<Norm> tap_norms;       // of each tap, before fc; or none
  Norm embedding_norm, hidden_norm;
  std::shared_ptr<PackedWeight> embedding;   // null: DecoderWeights::embedding
  bool keeps_normed = false;                 // the residual stream begins with the normed hidden
  bool recycles_normed = false;              // the final norm's output is the next row's hidden
  std::shared_ptr<PackedWeight> projection;  // [2 hidden] -> hidden; null: attention reads pairs
  bool hidden_first = false;                 // in the pair
  bool blanks_first = false;                 // the first pair of a text has no embedding
};

struct DecoderWeights {
  std::vector<LayerWeights> layers;
  Norm final_norm;
  std::shared_ptr<PackedWeight> head;
  // Input embedding, BF16 [vocabulary, hidden]; null: the rows of the head.
  const uint8_t* embedding = nullptr;
  PerLayerEmbedding per_layer;
  std::shared_ptr<const HeadEntry> entry = nullptr;  // null: rows begin with their embeddings
};

}  // namespace specqd
