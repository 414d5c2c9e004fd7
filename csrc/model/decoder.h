// One parametrised decoder. A forward takes rows of any number of sequences, uses either precision
// of the same weights, and leaves logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "model/attention.h"
#include "model/input_products.h"
#include "model/kv_cache.h"
#include "model/layer_weights.h"
#include "model/partial_head.h"
#include "model/rope.h"
#include "runtime/pool.h"
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
  bool shares_of_chosen = true;  // router softmax over the chosen experts only, else over all
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

constexpr int32_t kBlank = -1;  // in place of a token of a pair: its embedding is zero

// Inputs of a head's rows beside their tokens, in BF16: features, [rows][feature_width()]; or
// recycled hidden rows, [rows][hidden].
struct HeadInputs {
  std::span<const uint16_t> values;
  bool are_recycled = false;
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

// `count` tokens of a sequence at positions from `start`; asks for logits of the last `logits`.
struct ForwardRows {
  int sequence;
  int64_t start;
  int64_t count;
  int64_t logits;
  int64_t settled = 0;  // no later forward of the sequence begins before, except at 0
};

// The rows of the head that a forward reads: all, or those of the partial head. All other logits
// are -infinity.
enum class HeadUse { kWhole, kPartial };

class Decoder {
 public:
  Decoder(DecoderSpec spec, DecoderWeights weights, std::shared_ptr<Pool> pool,
          const Kernels& kernels, int64_t max_rows);

  const DecoderSpec& spec() const { return spec_; }
  const Kernels& kernels() const { return kernels_; }
  Pool& pool() { return *pool_; }
  const KvShape& kv_shape() const { return kv_shape_; }
  StateShape state_shape() const;  // of recurrent layers
  int64_t max_rows() const { return max_rows_; }

  // Whether the cache holds every page that these rows write or read.
  bool has_pages(const KvCache& cache, const ForwardRows& rows) const;

  // Writes keys and values of all rows into the cache (their pages must be writable) and leaves the
  // asked logits in the order of the sequences. Token ids must be < vocabulary, rows <= max_rows().
  void forward(Precision precision, const KvCache& cache, std::span<const int32_t> tokens,
               std::span<const ForwardRows> sequences, HeadUse head = HeadUse::kWhole);

  // The same for a head: rows are pairs. Token ids must be rows of the embedding, or kBlank.
  void forward_pairs(Precision precision, const KvCache& cache, HeadInputs inputs,
                     std::span<const int32_t> tokens, std::span<const ForwardRows> sequences,
                     HeadUse head);
  // The hidden row, BF16 [hidden], that a head's row of the last forward gives the next one.
  void recycle(int64_t row, std::span<uint16_t> out) const;
  const HeadEntry* entry() const { return weights_.entry.get(); }
  int64_t feature_width() const;  // values of a feature that a head's row reads

  // Logits of the last forward: row `row` of the asked ones, [vocabulary].
  std::span<const float> logits(int64_t row) const;
  int64_t logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }

  // Bytes of weights that a forward of one row reads in that precision, without the input embedding
  // and a draft's best panels.
  size_t weight_bytes(Precision precision) const;
  // Bytes of weights that the last forward read.
  size_t moved_bytes() const { return moved_bytes_; }
  // Bytes of keys, values and states that the last forward read or wrote: keys and values in blocks
  // of 32 positions. A block counts once per sequence, even if several of its rows read it.
  size_t seen_cache_bytes() const;

  // Later forwards copy the residual stream of all rows at these boundaries: b is the input of
  // layer b, and the number of layers is the input of the final norm. Ascending; empty: nothing is
  // copied. Throws std::invalid_argument for other boundaries.
  void tap(std::vector<int64_t> boundaries);
  int64_t rows() const { return rows_; }  // of the last forward
  std::span<const int64_t> tapped() const { return tapped_; }
  // Finite BF16 of the last forward's rows from `row`, [rows][boundaries][hidden].
  std::span<const uint16_t> taps(int64_t row, int64_t rows) const;

  // Sums the squared inputs of the products of exact forwards from now on. By layer: queries, keys
  // and values; output; gate and up; down (experts share those of their layer); gate and up, and
  // down, of the shared feed forward; gate and projection of the per-layer embedding; a latent
  // layer's queries, keys and values. Last: the projection of all per-layer embeddings, and the
  // head. Empty where there is no such matrix.
  void watch_inputs();
  // Ends the watch.
  std::vector<std::vector<float>> take_input_products() {
    return std::exchange(inputs_, nullptr)->take();
  }
  bool watches_inputs() const { return inputs_ != nullptr; }

  // The partial head of drafts for this model. Exact forwards record prompts and picks in it.
  PartialHead& partial_head() const { return *partial_head_; }
  // Uses the partial head of `target`, for which this model drafts.
  void draft_for(const Decoder& target) {
    partial_head_ = target.partial_head_;
    is_target_ = &target == this;
  }
  // Records the picks from exact logits, as verify() returns them.
  void tell_picked(std::span<const int32_t> picks) const;

 private:
  // The destination of a block's output: added to the residual stream, kept in aside_, or added
  // together with aside_.
  enum class Destination { kResidual, kAside, kWithAside };

  // An expert that a row has chosen. A slot is one row of one expert; slots are ordered by expert,
  // then by row.
  struct Choice {
    int32_t expert, slot;
    float share;
  };

  struct Rope {
    RopeSpec spec;
    std::vector<float> inverse_frequencies;
    float factor;
    std::vector<float> cosines, sines;  // of positions [0, angles_), [position][rotated / 2]
    int64_t half() const { return std::ssize(inverse_frequencies); }
  };

  void place_layers();
  void reserve_scratch();
  size_t fixed_bytes(Precision precision) const;  // that every forward reads
  bool tells() const { return is_target_ && precision_ == Precision::kExact; }
  void tell_read(std::span<const int32_t> tokens, std::span<const ForwardRows> sequences);
  size_t head_bytes(Precision precision, int64_t panels) const;
  int64_t exact_panels() const;  // of the head, for each row of a draft
  void plan_head(HeadUse head);
  void leave_out(Team& team);
  void prepare_positions(std::span<const ForwardRows> sequences);
  void run_layers(Team& team, int64_t first, int64_t last);
  void keep_asked_rows();
  void plan_attention();
  void embed(Team& team);
  void enter_pairs(Team& team);
  const float* enter_feature(int64_t row, float* scratch) const;
  void make_pair(int64_t row, uint16_t* bits);
  size_t entry_bytes(Precision precision) const;
  void attend(Team& team, int64_t layer);
  void project(Team& team, const LayerWeights& layer);
  void feed_forward(Team& team, const LayerWeights& layer);
  void run_feed_forward(Team& team, const Norm& norm, const FeedForward& weights,
                        Destination destination);
  // Per-layer embeddings (decoder_per_layer.cpp).
  void embed_per_layer(Team& team);
  void finish_per_layer_row(int64_t row);
  void add_per_layer(Team& team, int64_t layer);
  void finish(Team& team);
  void put_logits(int64_t row, int64_t first, int64_t count, float* outputs);
  void choose_panels(Team& team);
  void reread_panels(Team& team, const PreparedRows& x);
  void copy_taps(Team& team, int64_t boundary);
  void share_attention(Team& team, int64_t layer);
  // Copies those of a product's outputs [first, first + count) that lie in [from, to) to
  // `out`, [rows][out_stride].
  void keep_outputs(int64_t first, int64_t count, const float* result, int64_t stride, int64_t from,
                    int64_t to, float* out, int64_t out_stride) const;
  void write_heads(int64_t layer, int64_t kv_head, const Attention::PageRows& part);
  void merge_head(const LayerWeights& layer, int64_t head, const Attention::PageRows& part);
  Attention& attention_of(const LayerWeights& layer) {
    return attentions_[static_cast<size_t>(layer.attention)];
  }
  void norm_heads(const Norm& norm, int64_t dim, float* values, int64_t first_head,
                  int64_t count) const;
  void write_queries(const LayerWeights& layer, int64_t kv_head, int64_t row, int64_t position);
  void write_key_value(const LayerWeights& layer, int64_t kv_head, int64_t row, int64_t position,
                       const KvView& view);
  const Rope* rope_of(const LayerWeights& layer) const;
  void rotate(const Rope* rope, float* values, int64_t position) const;
  void norm_whole_rows(Team& team, const LayerWeights& layer);
  void norm(const uint16_t* weight, const uint16_t* bias, const float* x, int64_t n,
            float* out) const;
  void norm(const Norm& norm, const float* x, int64_t n, float* out) const;
  void activate(const FeedForward& weights, int64_t first, int64_t count, float* result,
                int64_t stride, int64_t rows, float* out) const;

  // Recurrent layers (decoder_recurrent.cpp).
  void plan_states(std::span<const ForwardRows> sequences);
  std::span<const StateStep> steps_of(const SequenceRows& rows) const;
  void mix_recurrent(Team& team, int64_t layer);
  void convolve(int64_t layer, const SequenceStates& states, int64_t position, int64_t first,
                int64_t count, const float* in, float* out) const;
  void keep_inputs(int64_t layer, const SequenceStates& states, const StateStep& step,
                   int64_t first, int64_t count) const;
  void run_convolution(int64_t layer, const SequenceRows& rows, int64_t first);

  // The delta rule (decoder_delta.cpp).
  void run_delta_head(Team& team, int64_t layer, const SequenceRows& rows, int64_t key_head);
  void run_delta_rows(int64_t layer, const SequenceRows& rows, const StateStep& step,
                      int64_t key_head, int64_t position, int64_t count);
  DeltaChunk delta_chunk(const SequenceStates& states, int64_t layer, const StateStep& step,
                         int64_t value_head) const;
  void gate_head(const DeltaWeights& weights, float* x, float* out) const;

  auto normed(const Norm& norm) const;
  auto attention_inputs(const LayerWeights& layer) const;
  auto put_output(const Vector& bias, Destination destination);
  void add_aside(Team& team, const Norm& norm, float scale = 1.0f);

  // Latent attention (decoder_latent.cpp).
  static int64_t latent_tiles(const LatentWeights& weights);  // of its widest matrix
  size_t reserve_latents();  // returns the bytes of prepared rows of all heads
  void project_latents(Team& team, const LayerWeights& layer);
  void norm_latent(const LatentWeights& weights, float* latent) const;
  void expand_latents(Team& team, const LayerWeights& layer);
  // Multiplies a row's part of each head, which lie one after the other in `x`, by the head's part
  // of `weight`, and calls take(head, first_output, outputs, result, stride). Ends with a barrier.
  template <class Take>
  void multiply_heads(Team& team, const char* stage, const PackedWeight& weight, int64_t heads,
                      const PreparedRows& x, const Take& take);

  // Mixture of experts (decoder_experts.cpp).
  void mix_experts(Team& team, const LayerWeights& layer);
  PreparedRows route(Team& team, const LayerWeights& layer);
  void choose_experts(const LayerWeights& layer, int64_t row);
  void score_choices(const Mixture& mixture, int64_t experts, const float* sigmoids,
                     float* out) const;
  void share_among(const Mixture& mixture, int64_t experts, std::span<Choice> chosen,
                   float* scores) const;
  void sum_experts(const LayerWeights& layer, int64_t row);
  // Outputs of experts by slot, behind those of the shared feed forward by row.
  float* slot_outputs(const Mixture& mixture) {
    return aside_.data() + (mixture.has_shared() ? rows_ * spec_.hidden : 0);
  }
  void sort_choices(int64_t experts);
  PreparedRows gather(Team& team, const PreparedRows& x);
  template <class Take>
  void multiply_experts(Team& team, const char* stage, const LayerWeights& layer,
                        std::shared_ptr<PackedWeight> FeedForward::* weight, const PreparedRows& x,
                        bool is_gathered, const Take& take);

  // Fills one prepared row per batch row; `make(row, scratch)` returns the row's fp32 inputs. If
  // rows are few, every thread prepares its own copy, which is cheaper than a barrier.
  template <class Make>
  PreparedRows prepare(Team& team, Precision precision, int64_t rows, const PackedWeight& next,
                       const Make& make);
  // Multiplies prepared rows by the panels of `weight` and passes each range's result to
  // `take(first_output, outputs, result, stride)`; ends with a barrier. `stage` is its name in a
  // trace.
  template <class Take>
  void multiply(Team& team, const char* stage, Precision precision, const PackedWeight& weight,
                const PreparedRows& x, const Take& take);
  // The same for the given panels only.
  template <class Take>
  void multiply_runs(Team& team, const char* stage, Precision precision, const PackedWeight& weight,
                     std::span<const PanelRun> runs, const PreparedRows& x, const Take& take);
  // Prepares all rows and multiplies them, in the precision of the forward.
  template <class Make, class Take>
  void apply(Team& team, const char* stage, const PackedWeight& weight, const Make& make,
             const Take& take);

  DecoderSpec spec_;
  DecoderWeights weights_;
  std::shared_ptr<Pool> pool_;
  const Kernels& kernels_;
  int64_t max_rows_;
  std::vector<Attention> attentions_;     // by shape
  std::vector<int64_t> longest_windows_;  // by shape; 0 if a layer sees all positions
  KvShape kv_shape_;
  int64_t first_reader_ = 0;  // from this layer on, none has keys, values or states of its own
  // By layer: the layer of the cache that it reads, or its number among recurrent ones.
  std::vector<int64_t> cached_;
  void (*activate_)(const float* gate, const float* up, int64_t n, float* out);
  int64_t longest_window_ = 0;  // 0 if any layer sees all positions

  // The forward in progress.
  Precision precision_ = Precision::kExact;
  const KvCache* cache_ = nullptr;
  std::span<const int32_t> tokens_;
  std::vector<SequenceRows> sequences_, all_sequences_;  // of the layer in progress; of the first
  std::vector<int64_t> logit_rows_;                      // batch row of each row of logits
  int64_t rows_ = 0;
  size_t fixed_bytes_[2] = {}, moved_bytes_ = 0;
  std::vector<PanelRun> head_runs_;   // panels of the head that are read
  int64_t head_panels_ = 0;           // their number
  std::vector<float> panel_maxima_;   // of a draft's logits, [asked rows][panels of the head]
  std::vector<int64_t> best_panels_;  // that it reads exactly, [asked rows][panels]

  std::unique_ptr<InputProducts> inputs_;  // null: not watched
  std::vector<int64_t> tapped_;            // boundaries; and copies of the residual stream there
  std::vector<uint16_t> taps_;

  std::shared_ptr<PartialHead> partial_head_;
  bool is_target_ = true;  // owns partial_head_

  std::vector<Rope> ropes_;
  int64_t angles_ = 0;

  struct Scratch {  // per thread, which touches it first
    Memory row, product, prepared;
    float* floats() const { return reinterpret_cast<float*>(row.data()); }
    float* products() const { return reinterpret_cast<float*>(product.data()); }
  };
  std::vector<Scratch> scratch_;
  std::vector<float> residual_, heads_, hidden_, aside_;
  std::vector<float> gates_;               // of attention, [rows][heads * head_dim]
  std::vector<float> query_latents_;       // [rows][rank]
  std::vector<float> by_head_;             // queries, then outputs, of latent layers
  std::vector<float> recurrent_inputs_;    // [rows][outputs of the first product]
  std::vector<float> delta_rates_;         // [rows][2 heads]
  std::vector<StateStep> state_steps_;     // of all sequences
  std::vector<size_t> state_step_starts_;  // by sequence, and the end
  int64_t state_bytes_ = 0;
  std::vector<float> per_layer_;  // [rows][layers][width]
  HeadInputs inputs_of_pairs_;    // and pairs_, [rows][embedding; hidden]: of a head's forward
  std::vector<float> pairs_;
  Memory prepared_;
  std::vector<float> logits_;
  int64_t logits_stride_ = 0;

  // The experts chosen by the rows of the layer in progress.
  std::vector<float> router_scores_;    // [rows][rows of the router, padded to whole blocks]
  std::vector<float> choice_scores_;    // likewise: by which experts are chosen
  std::vector<float> shared_gates_;     // [rows]
  std::vector<Choice> choices_;         // [rows][experts_per_token], best first
  std::vector<int32_t> slot_row_;       // by slot
  std::vector<int32_t> expert_starts_;  // first slot of each expert, [experts + 1]
  std::vector<int32_t> chosen_;         // experts with slots
  Memory gathered_;                     // a prepared row per slot
};

}  // namespace specqd
