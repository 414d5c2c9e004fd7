// Whether another round of drafting pays.
//
// Knows what a level's rounds cost, how often its tokens are accepted and what they are worth; runs
// no model. The rule is in docs/design.md, "When another draft token pays".
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "draft/acceptance.h"
#include "draft/costs.h"
#include "draft/draft.h"

namespace specqd {

// Decides round by round which drafts go on.
class DraftPolicy {
 public:
  // `costs`: of the level's forwards, sampling included.
  explicit DraftPolicy(BatchCosts& costs) : costs_(costs) {}

  AcceptanceModel acceptance;

  // Sets the budget for probes, once forwards were measured.
  void begin() { probes_.begin(costs_.of(1)->seconds(1.0)); }
  // A round of the verifier went by: a share of its time may go into probes.
  void pass(std::span<const DraftRequest> requests);
  // Learns what a usual round for so many sequences makes and takes.
  void learn(size_t sequences, size_t tokens, double seconds);
  // Charges a round to the budget for probes, if it was one.
  void charge(std::span<Draft* const> drafts, double seconds);
  // Pays back the seconds that accepted tokens of a probe saved.
  void refund(double seconds) { probes_.refund(seconds); }

  // Returns the drafts for which another round pays: those with a positive value, if together they
  // save more than the round costs. Otherwise those that the budget allows as a probe, or none.
  std::vector<Draft*> select(std::span<Draft* const> drafts);
  // Seconds that the next rounds save for a draft in a batch of `count`, net of their time and of
  // their rows' cost in verification; 0 where none pays.
  double value_of_rest(const Draft& draft, size_t count) const;

 private:
  double round_share(size_t count) const;  // seconds of a round, for each sequence
  std::vector<Draft*> probes_among(std::span<Draft* const> drafts);
  double made() const { return made_.value().value_or(1.0); }

  BatchCosts& costs_;
  RunningMean made_;                   // tokens of a round, for each sequence
  std::map<int, RunningMean> rounds_;  // seconds of a round, by the size of the batch
  ProbeBudget probes_;
};

}  // namespace specqd
