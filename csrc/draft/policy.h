// Proposals while they are made, and whether another round of drafting pays.
//
// Knows what a level's forwards cost, how often its tokens are accepted and what they are worth;
// runs no model. The rule is in docs/design.md, "When another draft token pays".
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "draft/acceptance.h"
#include "draft/costs.h"
#include "draft/drafter.h"

namespace specqd {

// A proposal being made.
struct Draft {
  Draft(const DraftRequest& request, int64_t longest)
      : request(request), longest(longest), confidence(request.confidence) {}

  DraftRequest request;
  int64_t longest;
  Proposal proposal;
  double confidence;  // in the last token
  int64_t lag = 0;  // rows of accepted tokens that the next round forwards first, but the prompt's
  bool is_done = false;

  int64_t count() const { return std::ssize(proposal.tokens); }
  bool may_go_on() const { return !is_done && count() < longest; }
  // The request for what is left, at the chance that it is reached at all.
  DraftRequest rest() const;
  // Adds the tokens of a step up to the first that ends the sequence. The proposal ends there, or
  // where a step has none. The sequence gets the tokens as guesses.
  void add(Proposal step);
};

// The requests for what is left of drafts.
std::vector<DraftRequest> rests_of(std::span<Draft* const> drafts);

// Takes the guesses of drafts back from their sequences, however that ends.
class Guesses {
 public:
  explicit Guesses(std::span<Draft> drafts) : drafts_(drafts) {}
  ~Guesses() {
    for (Draft& draft : drafts_)
      draft.request.sequence->forget_guesses(draft.proposal.tokens.size());
  }
  Guesses(const Guesses&) = delete;
  Guesses& operator=(const Guesses&) = delete;

 private:
  std::span<Draft> drafts_;
};

// Decides round by round which drafts go on.
class DraftPolicy {
 public:
  // `costs`: of the level's forwards, picking included.
  explicit DraftPolicy(BatchCosts& costs) : costs_(costs) {}

  AcceptanceModel& acceptance(const Sequence& sequence) { return acceptance_.of(sequence); }

  // Sets the budget for probes, once forwards were measured.
  void begin();
  // A round of the verifier went by: a share of its time may go into probes.
  void pass(std::span<const DraftRequest> requests);
  // A round: its new tokens, its rows, and its seconds outside the level's own forward and picks.
  struct Round {
    size_t tokens;
    int64_t rows;
    double overhead_s;
  };
  void learn(std::span<Draft* const> drafts, const Round& round);
  // Charges a round to the budget for probes, if it was one.
  void charge(std::span<Draft* const> drafts, double seconds);
  // Pays back the seconds that accepted tokens of a probe saved.
  void refund(double seconds) { probes_.refund(seconds); }

  // Returns the drafts for which another round pays: those with a positive value, if together they
  // save more than the round costs. Otherwise none, or those that the budget allows as a probe.
  std::vector<Draft*> select(std::span<Draft* const> drafts);
  // Seconds that a proposal is expected to save, in a batch of `count`, as a choice compares them.
  double proposal_value(const DraftRequest& request, int64_t longest, size_t count);

 private:
  double value_of_rest(const Draft& draft, double follows, double round_share);
  double round_seconds(size_t count);
  std::vector<Draft*> probes_among(std::span<Draft* const> drafts);
  double made() const { return made_.value().value_or(1.0); }

  BatchCosts& costs_;
  ByTemperature<AcceptanceModel> acceptance_;
  RunningMean rows_, made_;              // of a round, for each sequence
  std::map<int, RunningMean> overhead_;  // seconds of a round, by the size of the batch
  ProbeBudget probes_;
};

}  // namespace specqd
