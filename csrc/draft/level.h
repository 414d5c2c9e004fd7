// A level: a model that verifies what its drafter proposes, and is itself a drafter.
//
// Knows tokens, rows and proposals; knows nothing of text, requests or scheduling.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "decode/forward.h"
#include "draft/costs.h"
#include "draft/drafter.h"
#include "draft/policy.h"

namespace specqd {

// Running counts of a level since it was made.
struct LevelStats {
  int64_t forwards = 0, rows = 0;
  double seconds = 0.0;  // within forwards
  double pick_seconds = 0.0;
  int64_t drafted = 0;  // tokens that its drafter proposed
  int64_t accepted = 0;
  std::vector<int64_t> accepted_at, drafted_at;  // by place in the proposal
  int64_t asked = 0;                             // requests to it as a drafter
  double token_value_seconds = 0.0;              // sum of the token values of these requests

  void count(size_t drafted, size_t accepted);
};

// A verifier over a drafter. With NoDraft it decodes plainly.
//
// `length` fixes the length of its proposals as a drafter. Without it, costs and acceptance decide
// (docs/design.md, "When another draft token pays").
class Level : public Drafter {
 public:
  using Clock = std::function<double()>;  // seconds

  Level(LevelModel& model, Drafter& drafter, std::optional<int64_t> length, Clock clock);

  LevelStats stats;

  std::optional<int64_t> length() const { return length_; }
  void set_drafter(Drafter& drafter) { drafter_ = &drafter; }

  // Verifies: makes at least one token of this level's own for each request, in one forward.
  //
  // The tokens are the longest prefix of the drafter's proposal that this model would have sampled
  // itself, and then its own next token. None are returned if no token is allowed.
  std::vector<Proposal> advance(std::span<const DraftRequest> requests);
  // Seconds that a token takes in a batch of `count` sequences, and so the value of one more. It is
  // never more than plain decoding takes: drafts that lose time must not raise the value.
  double seconds_per_token(size_t count);

  // Drafts: continues each sequence by the tokens that this level would sample itself, as far as
  // each round pays.
  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override;
  std::vector<double> values(std::span<const DraftRequest> requests) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  // Measures forwards, here and below, so that the first request is drafted well.
  void measure() override;

 private:
  double forward_seconds(const std::shared_ptr<Context>& context, int64_t rows);

  int64_t longest(const DraftRequest& request);
  int64_t lag(const Sequence& sequence, Context& context) const;
  // Whether the model has all tokens of the sequence: vocabularies of one tokenizer may be padded
  // to different sizes, and a model may use the padding.
  bool knows(const Sequence& sequence);
  void extend(std::span<Draft* const> drafts);

  std::vector<DraftRequest> draft_requests(std::span<const DraftRequest> requests,
                                           std::span<const size_t> starts);
  void keep_known(Proposal& proposal) const;
  std::vector<Proposal> conclude(std::span<const DraftRequest> requests,
                                 std::span<const std::shared_ptr<Context>> contexts,
                                 std::span<const Proposal> proposals,
                                 std::vector<ScoredTokens> answers);

  LevelModel& model_;
  Drafter* drafter_;
  std::optional<int64_t> length_;
  Clock clock_;
  BatchCosts costs_;  // of this level's forwards, and of sampling from their logits
  std::map<size_t, TokenRate> rates_;          // by the size of the batch
  DraftPolicy policy_;                         // of rounds as a drafter
  std::unordered_map<int64_t, size_t> known_;  // by sequence: its first tokens that the model has
};

}  // namespace specqd
