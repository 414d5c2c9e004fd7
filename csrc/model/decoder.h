// A decoder of any supported family. A forward takes rows of any number of sequences through its
// layers, in either precision of the same weights, and leaves logits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "model/candidate_selector.h"
#include "model/layer.h"
#include "model/output_head.h"
#include "model/pair_entry.h"
#include "model/taps.h"
#include "runtime/pool.h"

namespace specqd {

class Decoder {
 public:
  Decoder(DecoderSpec spec, const DecoderWeights& weights, std::shared_ptr<Pool> pool,
          const Kernels& kernels, int64_t max_rows);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const DecoderSpec& spec() const { return traits_.spec; }
  const Kernels& kernels() const { return traits_.kernels; }
  Pool& pool() { return *pool_; }
  int64_t max_rows() const { return batch_.max_rows; }
  const KvShape& kv_shape() const { return cache_plan_.kv; }
  const StateShape& state_shape() const { return cache_plan_.states; }

  // Whether the cache holds every page that these rows write or read.
  bool has_pages(const KvCache& cache, const ForwardRows& rows) const;

  // Writes keys and values of all rows into the cache, and leaves the requested logits in the order
  // of the sequences. Token ids must be below the vocabulary (of a draft head: below the rows of
  // its embedding, or kBlank), and there are at most max_rows() rows.
  void forward(const ForwardRequest& request);

  // For a block drafter: makes features, PairInputs::values, the keys and values of the requested
  // rows in all layers, and writes them into the cache. There are no tokens and no logits.
  void absorb(const ForwardRequest& request);
  // Values per row of features that absorb() reads; 0: this is no block drafter.
  int64_t context_width() const { return context_width_; }

  // These describe the last forward: its number of rows, its number of rows with logits, and row
  // `row` of the logits, [vocabulary].
  int64_t rows() const { return batch_.rows; }
  int64_t logit_rows() const { return head_.keeps_hidden() ? 0 : batch_.logit_row_count(); }
  std::span<const float> logits(int64_t row) const { return head_.logits(row); }
  // Whether a selector ranks the candidates of each row again; and the row's logits after
  // `previous`, [vocabulary] (CandidateSelector::select).
  bool has_selector() const { return selector_ != nullptr; }
  std::span<const float> selected_logits(int64_t row, int32_t previous, bool is_sampled) {
    return selector_->select(logits(row), row, previous, is_sampled);
  }
  // The same as logits() for a forward without an output head: row `row` of the final norm's
  // outputs, [hidden].
  int64_t hidden_rows() const { return head_.keeps_hidden() ? batch_.logit_row_count() : 0; }
  std::span<const float> hidden(int64_t row) const { return head_.hidden(row); }
  // For a draft head: the hidden row, BF16 [hidden], that row `row` passes to the next row.
  void recycle(int64_t row, std::span<uint16_t> out) const { pairs_->recycle(batch_, row, out); }

  // Makes the inputs of a draft head's rows; null: this is no draft head.
  const PairEntry* pair_entry() const { return pairs_; }
  OutputHead& output_head() { return head_; }
  const OutputHead& output_head() const { return head_; }
  Taps& taps() { return taps_; }
  const Taps& taps() const { return taps_; }

  // Bytes of weights that a forward of one row reads in this precision, without the input embedding
  // and a draft's exact panels; and bytes that the last forward read.
  size_t weight_bytes(Precision precision) const;
  size_t moved_bytes() const { return batch_.moved_bytes; }
  // Bytes of keys, values and states that the last forward read or wrote: keys and values in blocks
  // of 32 positions. A block counts once per sequence, even if several of its rows read it.
  size_t seen_cache_bytes() const;
  // Bytes that it would have read too if all rows had attended to all pages.
  size_t skipped_cache_bytes() const;

  // The number of strips, and the bytes of keys and values that they hold per position.
  int64_t strips() const { return std::ssize(cache_plan_.strip_heads); }
  size_t strip_bytes_per_position() const {
    const auto& words = cache_plan_.strip_words;
    return static_cast<size_t>(std::reduce(words.begin(), words.end())) * sizeof(uint16_t);
  }
  // The softmax weights of rows [first, last) with logits of the last forward, which must have
  // weighed pages: sums over rows and heads, [strips()][pages of the longest such sequence].
  std::vector<float> page_weights(int64_t first, int64_t last) const {
    return batch_.page_weights.sums(first, last);
  }

  // From now on, sums the products of the inputs of all matrices in exact forwards (InputProducts).
  void watch_inputs();
  // Ends the watch and returns the sums: one map per layer, then one for the decoder's other
  // matrices, by the name of the inputs. Throws std::logic_error if nothing is watched.
  std::vector<std::map<std::string, std::vector<float>>> take_input_products();

  // Records hashes of all rows after every stage of later forwards, until they are taken.
  void record_bits() { batch_.bits = std::make_unique<BitRecord>(); }
  std::vector<BitRecord::Stage> take_bits();

 private:
  // One list per layer, then one for the matrices before and after the layers.
  std::vector<std::vector<BlockMatrix>> matrices() const;
  void reserve();
  void begin(const ForwardRequest& request);
  // Runs layers [first, last), and the output head after the last one of all.
  void run_layers(Team& team, int64_t first, int64_t last);

  const Traits traits_;
  std::shared_ptr<Pool> pool_;
  std::vector<RopeTable> ropes_;
  const CachePlan cache_plan_;
  std::vector<std::unique_ptr<Block>> entries_;  // what rows begin with, in order
  PairEntry* pairs_ = nullptr;                   // the one of a draft head
  std::unique_ptr<Block> context_;               // null: this is no block drafter
  int64_t context_width_ = 0;
  std::vector<Layer> layers_;
  OutputHead head_;
  std::unique_ptr<CandidateSelector> selector_;  // null: logits are ranked as they are
  Taps taps_;
  Batch batch_;  // of the last forward
  size_t fixed_bytes_[2] = {};
};

}  // namespace specqd
