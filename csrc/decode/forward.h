// A precision of a model's weights over a cache, as levels use it: rows of sequences forwarded and
// verified. Knows tokens and positions; knows nothing of drafts or of who requests.
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
// More rows of logits than one forward can leave.
struct TooManyRows : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The prefix of a proposal that a model would have picked itself and then its own next pick, each
// with its probability; shorter where no token is allowed.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;
};

// What a level needs of a model.
class LevelModel {
 public:
  virtual ~LevelModel() = default;

  virtual int64_t vocabulary() const = 0;
  virtual int64_t max_positions() const = 0;
  virtual int64_t max_rows() const = 0;  // of logits, that one forward can leave

  // This model's view of its cache for a sequence, made on first use.
  virtual std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) = 0;
  // Caches all rows and leaves the asked logits, in the batch's order. Throws CacheFull.
  virtual void forward(std::span<const Rows> batch) = 0;
  // What the last forward's logits from `row` on say to a proposal for the sequence.
  virtual Answer verify(int64_t row, std::span<const int32_t> proposal,
                        const std::shared_ptr<Sequence>& sequence) = 0;
  virtual void release(const std::shared_ptr<Sequence>& sequence) = 0;
};

// Throws std::invalid_argument for rows that do not match the tokens, lack pages or are too many.
void check_rows(const Decoder& decoder, const KvCache& cache, std::span<const int32_t> tokens,
                std::span<const ForwardRows> rows);

// One precision of a decoder. Where `exact` is given, the fp4 precision of the same weights, whose
// provisional keys and values lie behind the exact ones in the same cache.
class ModelForward : public LevelModel {
 public:
  ModelForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
               Precision precision, int64_t max_positions,
               std::shared_ptr<ModelForward> exact = nullptr);

  int64_t vocabulary() const override { return decoder_->spec().vocabulary; }
  int64_t max_positions() const override { return max_positions_; }
  int64_t max_rows() const override { return decoder_->max_rows(); }
  size_t bytes_read() const { return bytes_read_; }  // of weights, by all forwards so far
  size_t cache_bytes_read() const { return cache_bytes_read_; }  // of keys and values
  // What forwards read of the head from now on: all of it, unless this is told.
  void set_head(const HeadUse& head) { head_ = head; }

  std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) override;
  // Lets a sequence go on from a context that was made for it.
  void adopt(const Sequence& sequence, std::shared_ptr<Context> context);
  // More rows than one forward takes are forwarded in parts; those with logits must fit into the
  // last. Throws CacheFull and TooManyRows.
  void forward(std::span<const Rows> batch) override;
  Answer verify(int64_t row, std::span<const int32_t> proposal,
                const std::shared_ptr<Sequence>& sequence) override;
  // Its exact precision forgets it too, which need not be a level of its own.
  void release(const std::shared_ptr<Sequence>& sequence) override;

 protected:
  // Runs what uses no other object of the caller's: others may go on meanwhile.
  virtual void apart(const std::function<void()>& work) { work(); }

 private:
  std::vector<Rows> forward_surplus(std::span<const Rows> batch, size_t surplus);
  void forward_whole(std::span<const Rows> batch);

  std::shared_ptr<Decoder> decoder_;
  std::shared_ptr<KvCache> cache_;
  Precision precision_;
  HeadUse head_;
  int64_t max_positions_;
  std::shared_ptr<ModelForward> exact_;
  std::unordered_map<int64_t, std::shared_ptr<Context>> contexts_;  // by key
  size_t bytes_read_ = 0, cache_bytes_read_ = 0;
  std::vector<int32_t> tokens_;  // of the forward in progress
  std::vector<ForwardRows> rows_;
};

}  // namespace specqd
