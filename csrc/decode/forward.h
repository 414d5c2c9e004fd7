// Forwards rows of sequences with one precision of a model over a cache, and verifies proposals,
// for levels. Knows tokens and positions, but no drafts and no requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "decode/context.h"
#include "decode/page_store.h"
#include "decode/sequence.h"
#include "model/decoder.h"
#include "model/kv_cache.h"

namespace specqd {

// The cache does not have enough free pages for the rows.
struct CacheFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// More rows of logits than one forward can produce.
struct TooManyRows : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The interface of a model that a level uses.
class LevelModel {
 public:
  virtual ~LevelModel() = default;

  virtual int64_t vocabulary() const = 0;
  virtual int64_t max_positions() const = 0;
  virtual int64_t max_rows() const = 0;  // most rows of logits per forward

  // This model's context for a sequence; it is made on first use.
  virtual std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) = 0;
  // The last position, at most `position`, from which a forward of the context can continue. It is
  // 0 if the state of recurrent layers at `position` is lost, unless a draft finds an earlier one.
  virtual size_t resumable(const Context& context, size_t position) const {
    (void)context;
    return position;
  }
  // Computes all rows and caches their keys and values. Keeps the requested logits, in the order of
  // the batch. Throws CacheFull.
  virtual void forward(std::span<const Rows> batch) = 0;
  // Verifies a proposal for the sequence with the logits of the last forward from `row` on. Returns
  // the longest prefix of the proposal that equals the tokens which the model samples itself, and
  // then the next token that it samples. Stops early at a row where no token is allowed.
  virtual ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                              const std::shared_ptr<Sequence>& sequence) = 0;
  virtual void release(const std::shared_ptr<Sequence>& sequence) = 0;
  // Lets a new sequence begin with pages that others have published in the model's cache. Returns
  // the number of positions.
  virtual int64_t adopt_prefix(const std::shared_ptr<Sequence>& sequence) {
    (void)sequence;
    return 0;
  }
  // Offers the full pages of accepted tokens to later sequences.
  virtual void publish(const std::shared_ptr<Sequence>& sequence) { (void)sequence; }
  // Bytes of weights, and of keys and values, that all forwards so far have read.
  virtual size_t bytes_read() const { return 0; }
  virtual size_t cache_bytes_read() const { return 0; }
  // What the latter would be if drafts read their whole context.
  virtual size_t whole_cache_bytes() const { return cache_bytes_read(); }
};

// Throws std::invalid_argument if there are too many rows, if they do not match the tokens, or if
// the cache has no pages or states for them.
void check_rows(const Decoder& decoder, const KvCache& cache, std::span<const int32_t> tokens,
                std::span<const ForwardRows> rows);

// Forwards of one precision of a decoder over a cache.
class DecoderForward : public LevelModel {
 public:
  int64_t max_rows() const override { return decoder_->max_rows(); }
  const Decoder& decoder() const { return *decoder_; }
  size_t bytes_read() const override { return bytes_read_; }
  size_t cache_bytes_read() const override { return cache_bytes_read_; }
  size_t whole_cache_bytes() const override { return whole_cache_bytes_; }
  // Bytes of weights that a forward of one row reads. More rows may use more experts.
  size_t bytes_per_forward() const { return decoder_->weight_bytes(precision_); }
  // From now on, forwards read only the partial output head. By default they read the whole one.
  virtual void read_partial_head() { head_ = HeadUse::kPartial; }
  // Drafts for `target` from now on, from the part of the output head that its text suggests.
  void draft_for(const Decoder& target) {
    decoder_->output_head().draft_for(target.output_head());
    read_partial_head();
  }

  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const std::shared_ptr<Sequence>& sequence) override;

  // From now on, `store` also keeps the published pages of the cache, and sequences begin with
  // those that it has kept.
  void keep_pages(std::shared_ptr<PageStore> store) { store_ = std::move(store); }

  // A row of logits of the last forward, [vocabulary]. Valid until the next call.
  virtual std::span<const float> logits(int64_t row) { return decoder_->logits(row); }
  virtual int64_t logit_rows() const { return decoder_->logit_rows(); }

 protected:
  DecoderForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
                 Precision precision)
      : decoder_(std::move(decoder)), cache_(std::move(cache)), precision_(precision) {}

  // The logits of a row from which the token after `previous` is sampled, or of which the largest
  // is taken. Valid until the next call.
  virtual std::span<const float> logits_after(int64_t row, int32_t /*previous*/,
                                              bool /*is_sampled*/) {
    return logits(row);
  }
  // The temperature at which tokens are sampled.
  virtual float temperature(const SamplerParams& params) const { return params.temperature; }
  // Runs work during which other threads of the caller may run, because it uses none of their
  // objects.
  virtual void run_concurrently(const std::function<void()>& work) { work(); }
  // Begins an empty slot of the cache with the published or kept pages of these tokens, if the
  // sequence may have them. Returns the number of positions.
  size_t attach_prefix(int slot, std::span<const int32_t> tokens, const Sequence& sequence);
  // Offers the full pages of a slot that holds these tokens to later sequences, and to the store.
  void publish_pages(int slot, std::span<const int32_t> tokens, const Sequence& sequence);
  // Runs a forward of the decoder and counts the bytes that it reads.
  void run_forward(const std::function<void()>& work);

  std::shared_ptr<Decoder> decoder_;
  std::shared_ptr<KvCache> cache_;
  Precision precision_;
  HeadUse head_ = HeadUse::kWhole;
  std::vector<int32_t> tokens_;  // tokens_ and rows_ belong to the forward in progress
  std::vector<ForwardRows> rows_;

 private:
  std::shared_ptr<PageStore> store_;
  size_t bytes_read_ = 0, cache_bytes_read_ = 0, whole_cache_bytes_ = 0;
};

// Forwards a whole model. With `exact`, it is the fp4 precision of the same weights; its
// provisional keys and values come after the exact ones in the same cache.
//
// Rows of a long proposal read the pages that DraftPages chooses; all other rows read everything.
class ModelForward : public DecoderForward {
 public:
  ModelForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
               Precision precision, int64_t max_positions,
               std::shared_ptr<ModelForward> exact = nullptr);

  int64_t vocabulary() const override { return decoder_->spec().vocabulary; }
  int64_t max_positions() const override { return max_positions_; }
  // From now on, forwards in both precisions log the residual stream at these layer boundaries too.
  void log_features(std::span<const int64_t> boundaries);
  bool logs_features() const {
    return exact_ == nullptr ? logs_features_ : exact_->logs_features();
  }
  // The positions of a context that drafts of this precision read; 0: all. By default, so many that
  // the weights remain most of what a draft reads.
  void set_draft_context(std::optional<int64_t> positions);
  // This model's context for a sequence; null before its first use.
  std::shared_ptr<Context> held(const Sequence& sequence) const;

  std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) override;
  size_t resumable(const Context& context, size_t position) const override;
  // Sets the context that a sequence continues from.
  void adopt(const Sequence& sequence, std::shared_ptr<Context> context);
  // Splits the rows into several forwards if one cannot take them; those with logits must fit into
  // the last forward. Throws CacheFull and TooManyRows.
  void forward(std::span<const Rows> batch) override;
  // Does the same without the output head: the rows that would get logits leave the outputs of the
  // final norm, Decoder::hidden().
  void forward_hidden(std::span<const Rows> batch);
  // Also weighs the pages of the sequence by the rows whose tokens were accepted.
  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const std::shared_ptr<Sequence>& sequence) override;
  // Also releases the sequence in the exact precision, which may not be a level of its own.
  void release(const std::shared_ptr<Sequence>& sequence) override;
  // Both do nothing with `exact`, which shares its pages.
  int64_t adopt_prefix(const std::shared_ptr<Sequence>& sequence) override;
  void publish(const std::shared_ptr<Sequence>& sequence) override;

 private:
  std::vector<Rows> forward_surplus(std::span<const Rows> batch, size_t surplus);
  void forward_whole(std::span<const Rows> batch);
  void log(std::span<const Rows> batch);
  int64_t draft_pages(size_t batch) const;
  ForwardRows forward_rows(const Rows& rows, size_t batch);

  // Rows of the last forward that weighed pages.
  struct Weighed {
    std::shared_ptr<Context> context;
    int64_t first, last;  // rows of logits
  };

  int64_t max_positions_;
  std::shared_ptr<ModelForward> exact_;
  std::unordered_map<int64_t, std::shared_ptr<Context>> contexts_;  // by key
  bool logs_features_ = false;
  std::optional<int64_t> draft_context_;
  const int64_t affordable_;  // positions whose bytes are a fixed part of those of the weights
  bool has_draft_ = false;    // the fp4 precision drafts in the same cache
  int64_t weighed_from_;      // contexts with so many positions weigh their pages
  std::vector<Weighed> weighed_;
};

}  // namespace specqd
