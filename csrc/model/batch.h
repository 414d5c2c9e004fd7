// The rows of a forward, and what they carry from block to block. This file knows no weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/bit_record.h"
#include "model/input_products.h"
#include "model/kv_cache.h"
#include "model/layer_weights.h"
#include "model/page_weights.h"
#include "model/paged_attention.h"
#include "model/scratch.h"
#include "model/traits.h"
#include "runtime/memory.h"

namespace specqd {

// `count` tokens of a sequence at positions from `start`. The last `logits` of them get logits.
struct ForwardRows {
  int sequence;
  int64_t start;
  int64_t count;
  int64_t logits;
  int64_t settled = 0;  // later forwards of the sequence begin at or after this, or at 0
  const PageChoice* choice = nullptr;  // the pages that they attend to; null: all
  bool weighs_pages = false;           // its rows with logits record the weights of all pages
};

// The panels of the output head that a forward reads: all, or those of the partial head. All other
// logits are -infinity. With kNone, it reads none and keeps the outputs of the final norm instead.
enum class HeadUse { kWhole, kPartial, kNone };

constexpr int32_t kBlank = -1;  // in place of a pair's token: its embedding is zero

// What the rows of a draft head read in addition to their tokens, or those of a block drafter's
// context instead of tokens, in BF16: features, [rows][feature width], or recycled hidden rows,
// [rows][hidden].
struct PairInputs {
  std::span<const uint16_t> values = {};
  bool are_recycled = false;
};

struct ForwardRequest {
  Precision precision;
  const KvCache& cache;  // its pages for these rows must be writable
  std::span<const int32_t> tokens;
  std::span<const ForwardRows> sequences;
  HeadUse head = HeadUse::kWhole;
  PairInputs pairs = {};
};

// The steps of a forward over the states of recurrent layers; these layers all take the same steps.
class StatePlan {
 public:
  void plan(const KvCache& cache, std::span<const ForwardRows> sequences);
  std::span<const StateStep> steps_of(size_t sequence) const;  // index into the forward's
  int64_t bytes() const { return bytes_; }                     // bytes of states read or written

 private:
  std::vector<StateStep> steps_;
  std::vector<size_t> starts_;  // by sequence, and the end
  int64_t bytes_ = 0;
};

// Memory of one thread. The thread touches it first, so it is on the thread's node.
struct ThreadScratch {
  Memory row, product, prepared;
  float* floats() const { return reinterpret_cast<float*>(row.data()); }
  float* products() const { return reinterpret_cast<float*>(product.data()); }
};

struct Batch {
  // `strip_heads`: query heads of each strip.
  Batch(const Traits& traits, std::span<const AttentionKind> kinds,
        std::vector<int64_t> strip_heads, int threads, int64_t max_rows);

  void begin(const ForwardRequest& request);
  // Drops the rows that get no logits, from the sequences and from what rows carry.
  void keep_rows_with_logits();

  int64_t logit_row_count() const { return std::ssize(logit_rows); }
  ThreadScratch& scratch_of(const Team& team) {
    return threads[static_cast<size_t>(team.thread())];
  }
  float* residual_of(int64_t row) { return residual.data() + row * traits.spec.hidden; }
  float* aside_of(int64_t row) { return aside.data() + row * traits.spec.hidden; }
  // Where attention leaves the weights of pages, by head of the strip; empty if they are not
  // wanted.
  std::span<float> page_weights_of(int64_t strip, int64_t row, int64_t head);

  const Traits& traits;
  const int64_t max_rows;

  // The forward in progress.
  Precision precision = Precision::kExact;
  const KvCache* cache = nullptr;
  std::span<const int32_t> tokens;
  PairInputs pair_inputs;
  std::vector<SequenceRows> sequences;      // rows that are still computed
  std::vector<SequenceRows> all_sequences;  // rows that the forward began with
  std::vector<int64_t> logit_rows;          // the row of each row of logits
  int64_t rows = 0;
  StatePlan states;
  std::vector<PagedAttention> attentions;  // by kind
  PageWeights page_weights;                // by row with logits
  std::vector<int32_t> weighed_rows;  // by row: its row in them, or kNotWeighed; empty: all are not
  size_t moved_bytes = 0;             // of weights that this forward has read

  // What rows carry.
  std::vector<float> residual;   // [rows][hidden]
  std::vector<float> aside;      // [rows][hidden]: outputs that are not yet in the residual stream
  std::vector<float> pairs;      // [rows][2 * hidden], of a draft head
  std::vector<float> per_layer;  // [rows][layers * width], embeddings of the layers' own

  // Memory that blocks use one after the other.
  Memory scratch;   // as their ScratchLayouts say
  Memory prepared;  // inputs of the product in progress
  std::vector<ThreadScratch> threads;

  std::unique_ptr<InputProducts> watched;  // null: inputs are not measured
  std::unique_ptr<BitRecord> bits;         // null: bits are not recorded

 private:
  void plan_page_weights(std::span<const ForwardRows> parts);
};

}  // namespace specqd
