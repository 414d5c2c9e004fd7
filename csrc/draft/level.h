// A level: a model that verifies what its drafter proposes, and is itself a drafter.
//
// Knows tokens, rows and proposals; knows nothing of text, requests or scheduling.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "decode/forward.h"
#include "draft/drafter.h"
#include "draft/level_costs.h"
#include "draft/level_reading.h"
#include "draft/policy.h"

namespace specqd {

// Running counts of a level since it was made.
struct LevelStats {
  int64_t forwards = 0, rows = 0;
  double seconds = 0.0;  // within forwards
  double pick_seconds = 0.0;
  size_t bytes_read = 0, cache_bytes_read = 0;  // by its forwards: other levels may use its model
  size_t whole_cache_bytes = 0;                 // the latter, if drafts read their whole context
  int64_t drafted = 0;                          // tokens that its drafter proposed
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
  // itself, and then its own next token. None are returned if no token is allowed, or if the
  // request leaves a part of the prompt unread. The `scores` rows of logits that a request asked
  // for are those before the result's row.
  std::vector<Proposal> advance(std::span<const DraftRequest> requests);
  // The tokens before the last one that this model's cache does not hold.
  int64_t num_unread(const std::shared_ptr<Sequence>& sequence) {
    return reading_.num_unread(sequence);
  }
  // LevelReading and LevelCosts describe these two.
  int64_t tokens_within(double seconds, int64_t position) const {
    return reading_.tokens_within(seconds, position);
  }
  double seconds_per_token(size_t count) { return costs_.seconds_per_token(count); }

  // Drafts: continues each sequence by the tokens that this level would sample itself, as far as
  // each round pays.
  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override;
  std::vector<Value> values(std::span<const DraftRequest> requests) override;
  void follow(std::span<const std::shared_ptr<Sequence>> sequences) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  // Measures forwards, here and below, so that the first request is drafted well.
  void measure() override;

 private:
  // What a forward reads of one sequence, apart from its proposal.
  struct Reading {
    std::shared_ptr<Context> context;
    int64_t start, end;  // tokens
    bool is_last;        // it reads all that are left, so that the next token can be sampled
    bool is_prompt;      // or tokens that were accepted long ago
  };

  int64_t longest(const DraftRequest& request);
  // What the next token of each draft takes in a round of all of them.
  std::vector<Priced> priced(std::span<Draft* const> drafts);
  // Whether the model has all tokens of the sequence: vocabularies of one tokenizer may be padded
  // to different sizes, and a model may use the padding.
  bool knows(const Sequence& sequence);
  void extend(std::span<Draft* const> drafts);

  std::vector<Reading> readings_of(std::span<const DraftRequest> requests);
  std::vector<DraftRequest> draft_requests(std::span<const DraftRequest> requests,
                                           std::span<const Reading> readings);
  // The request to the drafter, in a batch of `count` whose rows include `scored` of prompts.
  DraftRequest below(DraftRequest request, size_t count, int64_t scored = 0);
  void keep_known(Proposal& proposal) const;
  std::vector<Rows> rows_of(std::span<const DraftRequest> requests,
                            std::span<const Reading> readings,
                            std::span<const Proposal> proposals) const;
  std::vector<Proposal> verify(std::span<const DraftRequest> requests,
                               std::span<const Reading> readings,
                               std::span<const Proposal> proposals);
  void observe(std::span<const DraftRequest> requests, std::span<const Reading> readings,
               std::span<const Proposal> proposals, std::span<const Proposal> results);
  void learn(std::span<const Reading> readings, int64_t rows, double seconds);
  void share_prompts(std::span<const DraftRequest> requests, std::span<const Reading> readings);

  LevelModel& model_;
  Drafter* drafter_;
  std::optional<int64_t> length_;
  Clock clock_;
  LevelCosts costs_;
  LevelReading reading_;
  DraftPolicy policy_;           // of rounds as a drafter
  double usual_tokens_ = 256.0;  // of texts that were released, without their prompts
  bool is_measured_ = false;
  std::unordered_map<int64_t, size_t> known_;  // by sequence: its first tokens that the model has
};

}  // namespace specqd
