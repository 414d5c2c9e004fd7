// One parametrised decoder: embeds, attends, feeds forward, and leaves logits. A forward takes the
// rows of any number of sequences in either reading of the same weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention.h"
#include "kernels.h"
#include "kv_cache.h"
#include "pack.h"
#include "pool.h"
#include "rope.h"

namespace specqd {

// Which of the weights' two readings a forward uses.
enum class Reading : int { kExact = 0, kDraft = 1 };

using Vector = std::vector<uint16_t>;  // BF16; empty where the model has none

struct LayerWeights {
  Vector attention_norm, query_norm, key_norm, feed_forward_norm;
  std::shared_ptr<PackedWeight> query_key_value, output, gate_up, down;
  Vector query_key_value_bias, output_bias, gate_bias, up_bias, down_bias;
  int64_t window = 0;  // positions a row sees, itself included; 0: all
};

struct DecoderSpec {
  int64_t hidden, feed_forward, heads, kv_heads, head_dim, vocabulary;
  float norm_epsilon;
  RopeSpec rope;
};

struct DecoderWeights {
  std::vector<LayerWeights> layers;
  Vector final_norm;
  std::shared_ptr<PackedWeight> head;
  // Rows of the input embedding: BF16 [vocabulary, hidden], or null where the head is read for
  // them.
  const uint8_t* embedding = nullptr;
};

// `count` tokens of a sequence at positions from `start`; logits of the last `logits` of them.
struct ForwardRows {
  int sequence;
  int64_t start;
  int64_t count;
  int64_t logits;
};

class Decoder {
 public:
  Decoder(DecoderSpec spec, DecoderWeights weights, std::shared_ptr<Pool> pool,
          const Kernels& kernels, int64_t max_rows);

  const DecoderSpec& spec() const { return spec_; }
  const Kernels& kernels() const { return kernels_; }
  Pool& pool() { return *pool_; }
  KvShape kv_shape() const;
  int64_t max_rows() const { return max_rows_; }

  // Whether the cache holds every page that these rows write or see.
  bool has_pages(const KvCache& cache, const ForwardRows& rows) const;

  // Writes keys and values of all rows into the cache (their pages must be writable) and the asked
  // logits, in the order of the sequences. Token ids must be < vocabulary, rows <= max_rows().
  void forward(Reading reading, const KvCache& cache, std::span<const int32_t> tokens,
               std::span<const ForwardRows> sequences);

  // Logits of the last forward: row i of those asked, [vocabulary].
  std::span<const float> logits(int64_t row) const;
  int64_t logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }

  // Bytes of weights that a forward moves in that reading (input embedding rows left out).
  size_t weight_bytes(Reading reading) const;

 private:
  struct Product;
  void prepare_positions(std::span<const ForwardRows> sequences);
  void run(Team& team);
  void embed(Team& team);
  void attend(Team& team, int64_t layer);
  void feed_forward(Team& team, int64_t layer);
  void finish(Team& team);
  void share_attention(Team& team, int64_t layer);
  void write_heads(int64_t layer, int64_t kv_head, const Attention::PageRows& part);
  void merge_head(int64_t head, const Attention::PageRows& part);
  void normalize_heads(float* values, int64_t count, const Vector& weight) const;

  auto normed(const Vector& weight) const;
  auto added_to_residual(const Vector& bias);

  // Fills one prepared row per batch row; `make(row, scratch)` returns the row's fp32 inputs. For
  // few rows every thread prepares its own copy, which is cheaper than a barrier.
  template <class Make>
  PreparedRows prepare(Team& team, int64_t rows, const PackedWeight& next, const Make& make);
  // Multiplies prepared rows by panels of `weight`, handing each range's result to
  // `take(first_output, outputs, result, stride)`; ends with a barrier.
  template <class Take>
  void multiply(Team& team, const PackedWeight& weight, const PreparedRows& x, const Take& take);

  DecoderSpec spec_;
  DecoderWeights weights_;
  std::shared_ptr<Pool> pool_;
  const Kernels& kernels_;
  int64_t max_rows_;
  Attention attention_;
  int64_t longest_window_ = 0;  // 0 if any layer sees everything

  // The forward in progress.
  Reading reading_ = Reading::kExact;
  const KvCache* cache_ = nullptr;
  std::span<const int32_t> tokens_;
  std::vector<SequenceRows> sequences_;
  std::vector<int64_t> logit_rows_;    // batch row of each row of logits
  int64_t rows_ = 0;

  // Cosines and sines of positions [0, angles_), [position][head_dim / 2].
  std::vector<float> inverse_frequencies_, cosines_, sines_;
  float attention_factor_ = 1.0f;
  int64_t angles_ = 0;

  struct Scratch {  // of one thread
    std::vector<float> row, product;
    Memory prepared;
  };
  std::vector<Scratch> scratch_;
  std::vector<float> residual_, heads_, hidden_;
  Memory prepared_;
  std::vector<float> logits_;
  int64_t logits_stride_ = 0;
};

}  // namespace specqd
