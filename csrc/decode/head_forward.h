// Forwards a draft head, which reads the features of the model that it drafts for ("the model
// above"). Knows tokens and positions, but no drafts and no requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "decode/feature_forward.h"
#include "decode/state_table.h"

namespace specqd {

// An EAGLE-3 head or an MTP layer. Its row for token j is a pair: that token, and the feature of
// position j - 1.
//
// The features come from the log of the model above. If the log does not have one, the row instead
// reads the hidden row that the head computed for the token before, so each such row takes a
// forward of its own. Rows whose features become known or change later are forwarded again. A
// sequence begins with the published entries of earlier ones, as far as its tokens are theirs.
// Otherwise the head's cache begins at the first pair whose feature is known; this is possible
// because only differences between rotary positions matter.
class HeadForward : public FeatureForward {
 public:
  // FeatureForward describes `boundaries` and `ids`.
  HeadForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache, Precision precision,
              std::shared_ptr<ModelForward> above, std::vector<int64_t> boundaries,
              std::vector<int32_t> ids);

  std::shared_ptr<Context> context(const std::shared_ptr<Sequence>& sequence) override;
  void forward(std::span<const Rows> batch) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  // Publishes entries from the first pair on that were made of exact features. Later sequences
  // adopt them on their own. The first pair has the second token, so pages are found by the tokens
  // from that one on.
  void publish(const std::shared_ptr<Sequence>& sequence) override;

  int64_t logit_rows() const override { return std::ssize(logits_) / decoder_->spec().vocabulary; }

 protected:
  std::span<const float> own_logits(int64_t row) override;

 private:
  // The state of one sequence.
  struct State {
    std::shared_ptr<Context> context;
    std::shared_ptr<Context> source;  // of the model above; null before its first forward
    size_t first = 0;                 // index of the token of the cache's first entry
    size_t settled = 0;               // entries of tokens before this one were made from features
    int64_t version = 0;              // the version of the log when they were made
    std::vector<uint16_t> hidden;     // read by the row of token hidden_for if it has no feature
    size_t hidden_for = 0;
  };
  // The rows of one sequence in a forward. Those from token `next` on are still to be computed.
  struct Part {
    State* state;
    const Rows* rows;
    size_t next;
    int64_t logits;    // index of its first row of logits
    size_t count = 0;  // rows in the pass in progress
    size_t end() const { return rows->start + rows->tokens.size(); }
  };

  void follow(State& state, const Sequence& sequence);
  void begin(State& state, const Sequence& sequence, size_t first);
  void begin_with_prefix(State& state, const Sequence& sequence);
  bool knows_feature(const State& state, size_t token) const;
  bool pass(std::span<Part> parts, bool recycles);
  void gather(Part& part, bool recycles);
  void take(std::span<Part> parts, bool recycles);

  StateTable<State> states_;
  std::vector<float> logits_;
  std::vector<uint16_t> inputs_;  // of the pass in progress
};

}  // namespace specqd
