// Forwards a block drafter, which drafts a block of tokens in one forward from the features of the
// model above. Knows tokens and positions, but no drafts and no requests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/feature_forward.h"
#include "decode/state_table.h"

namespace specqd {

// A DFlash drafter (arXiv 2602.06036). The first row of a block is the newest token, the others are
// masks; row j, at the position j after that of the newest token, predicts the token there.
//
// Rows attend to each other and to the context: the keys and values of all positions before the
// block, which are made of their features once (Decoder::absorb). Those of the block are scratch:
// the context of the same positions replaces them. Entries whose features change are made again.
// A sequence begins with the published contexts of earlier ones, as far as its tokens are theirs.
// Otherwise its context begins at the first position whose feature is known; this is possible
// because only differences between rotary positions matter. Where it does not reach the newest
// token, because features in between are not known, nothing can be drafted.
class BlockForward : public FeatureForward {
 public:
  // `block`: the most rows of a block, the newest token included. `mask`: the token id of masks.
  // FeatureForward describes `boundaries` and `ids`.
  BlockForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
               Precision precision, std::shared_ptr<ModelForward> above,
               std::vector<int64_t> boundaries, std::vector<int32_t> ids, int64_t block,
               int32_t mask);

  int64_t block() const { return block_; }

  // What a sequence's context holds, as context() found it.
  struct Readiness {
    bool is_ready = false;  // the context reaches the newest token, once `pending` is absorbed
    int64_t first = 0;      // position of the context's first entry
    int64_t length = 0;     // position after its last one
    int64_t pending = 0;    // known features that it lacks
    size_t verified = 0;    // tokens that the model above has made or verified
  };
  // Finds which features have become known or have changed. The context only identifies the
  // sequence: it holds no tokens.
  std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) override;
  Readiness readiness(const Sequence& sequence);
  // A block of `count` rows after the context of a sequence; all but the first get logits.
  Rows block_rows(const std::shared_ptr<Sequence>& sequence, int64_t count);
  // From now on, samples tokens with this share of the noise of their positions; 0: the likeliest.
  void sample_with(float share) { noise_share_ = share; }
  // Absorbs pending features, and computes blocks; without tokens, it only absorbs. Throws
  // CacheFull and TooManyRows.
  void forward(std::span<const Rows> batch) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  // Publishes a context from the first position on that was made of exact features. Later sequences
  // adopt it on their own.
  void publish(const std::shared_ptr<Sequence>& sequence) override;

 protected:
  std::span<const float> own_logits(int64_t row) override { return decoder_->logits(row); }
  std::span<const float> logits_after(int64_t row, int32_t previous, bool is_sampled) override {
    return decoder_->has_selector() ? decoder_->selected_logits(row, previous, is_sampled)
                                    : logits(row);
  }
  // The argmax of logits / T + share * noise is that of logits / (share * T) + noise.
  float temperature(const SamplerParams& params) const override {
    return noise_share_ * params.temperature;
  }

 private:
  // The context of one sequence: entries for positions [first, length), at [0, length - first) of
  // the cache.
  struct State {
    std::shared_ptr<Context> context;
    std::shared_ptr<Context> source;  // of the model above; null before its first forward
    size_t first = 0, length = 0;
    size_t known = 0;     // features of positions [length, known) can be absorbed
    size_t newest = 0;    // position of the newest token
    int64_t version = 0;  // the version of the log when this was found
  };

  void follow(State& state, const Sequence& sequence);
  void absorb(std::span<State* const> states);
  void add_rows(const State& state, size_t position, size_t count, size_t logits);

  int64_t block_;
  int32_t mask_;
  float noise_share_ = 1.0f;
  StateTable<State> states_;
  std::vector<uint16_t> inputs_;  // of the absorption in progress
};

}  // namespace specqd
