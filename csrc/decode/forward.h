// Forwards and verifies rows of sequences with one precision of a model over a cache; levels use
// it. Knows tokens and positions, but no drafts and no requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "decode/context.h"
#include "decode/sequence.h"
#include "model/decoder.h"
#include "model/kv_cache.h"

namespace specqd {

// The cache has too few free pages for the rows.
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

  // This model's context for a sequence, made on first use.
  virtual std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) = 0;
  // The last position up to `position` at which a forward of the context may begin: states of
  // recurrent layers may be lost. Then it is 0.
  virtual size_t resumable(const Context& context, size_t position) const {
    (void)context;
    return position;
  }
  // Caches all rows and leaves the asked logits, in the batch's order. Throws CacheFull.
  virtual void forward(std::span<const Rows> batch) = 0;
  // Verifies a proposal for the sequence with the last forward's logits from `row`: the prefix of
  // the proposal that equals the model's own picks, then its next pick. Stops early at a row where
  // no token is allowed.
  virtual ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                              const std::shared_ptr<Sequence>& sequence) = 0;
  virtual void release(const std::shared_ptr<Sequence>& sequence) = 0;
};

// Throws std::invalid_argument if rows do not match the tokens, lack pages or are too many.
void check_rows(const Decoder& decoder, const KvCache& cache, std::span<const int32_t> tokens,
                std::span<const ForwardRows> rows);

// Forwards of one precision of a decoder over a cache.
class DecoderForward : public LevelModel {
 public:
  int64_t max_rows() const override { return decoder_->max_rows(); }
  const Decoder& decoder() const { return *decoder_; }
  size_t bytes_read() const { return bytes_read_; }  // bytes of weights, all forwards so far
  size_t cache_bytes_read() const { return cache_bytes_read_; }  // bytes of keys and values
  // Later forwards read the partial head only; by default, the whole.
  virtual void read_partial_head() { head_ = HeadUse::kPartial; }

  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const std::shared_ptr<Sequence>& sequence) override;

  // Logits of the last forward, [vocabulary]. Valid until the next call.
  virtual std::span<const float> logits(int64_t row) { return decoder_->logits(row); }
  virtual int64_t logit_rows() const { return decoder_->logit_rows(); }

 protected:
  DecoderForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
                 Precision precision)
      : decoder_(std::move(decoder)), cache_(std::move(cache)), precision_(precision) {}

  // Runs work that uses no other object of the caller, so other threads of the caller may run
  // meanwhile.
  virtual void run_concurrently(const std::function<void()>& work) { work(); }
  // Runs a forward of the decoder, and counts what it reads.
  void run_forward(const std::function<void()>& work);

  std::shared_ptr<Decoder> decoder_;
  std::shared_ptr<KvCache> cache_;
  Precision precision_;
  HeadUse head_ = HeadUse::kWhole;
  std::vector<int32_t> tokens_;  // and rows_: of the forward in progress
  std::vector<ForwardRows> rows_;

 private:
  size_t bytes_read_ = 0, cache_bytes_read_ = 0;
};

// A whole model. With `exact`, it is the fp4 precision of the same weights; its provisional keys
// and values follow the exact ones in the same cache.
class ModelForward : public DecoderForward {
 public:
  ModelForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
               Precision precision, int64_t max_positions,
               std::shared_ptr<ModelForward> exact = nullptr);

  int64_t vocabulary() const override { return decoder_->spec().vocabulary; }
  int64_t max_positions() const override { return max_positions_; }
  // Later forwards log what the decoder taps, in both precisions.
  void log_features() { (exact_ == nullptr ? this : exact_.get())->logs_features_ = true; }
  bool logs_features() const {
    return exact_ == nullptr ? logs_features_ : exact_->logs_features();
  }
  // This model's context for a sequence; null before its first use.
  std::shared_ptr<Context> held(const Sequence& sequence) const;

  std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) override;
  size_t resumable(const Context& context, size_t position) const override;
  // Sets the context that a sequence continues from.
  void adopt(const Sequence& sequence, std::shared_ptr<Context> context);
  // Splits more rows than one forward takes into several; the rows with logits must fit into the
  // last forward. Throws CacheFull and TooManyRows.
  void forward(std::span<const Rows> batch) override;
  // Releases the sequence in the exact precision too, because that need not be a level of its own.
  void release(const std::shared_ptr<Sequence>& sequence) override;

 private:
  std::vector<Rows> forward_surplus(std::span<const Rows> batch, size_t surplus);
  void forward_whole(std::span<const Rows> batch);
  void log(std::span<const Rows> batch);

  int64_t max_positions_;
  std::shared_ptr<ModelForward> exact_;
  std::unordered_map<int64_t, std::shared_ptr<Context>> contexts_;  // by key
  bool logs_features_ = false;
};

}  // namespace specqd
