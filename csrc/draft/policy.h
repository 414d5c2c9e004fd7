// Whether another round of drafting pays.
//
// Knows what a level's rounds cost, how often its tokens are accepted and what they are worth; runs
// no model. The rule is in docs/design.md, "When another draft token pays".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft/acceptance.h"
#include "draft/costs.h"
#include "draft/draft.h"

namespace specqd {

// A draft with what its next token is expected to take in a round of all drafts.
struct Priced {
  Draft* draft;
  double token_s;      // seconds of the level for each of its tokens
  double catch_up_s;   // seconds to read the draft's lag first
  double catch_up_by;  // tokens that these are spread over
};

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
  // Charges a round that made so many tokens to the budget for probes, if it was one.
  void charge(std::span<Draft* const> drafts, size_t tokens, double seconds);
  // Pays back the seconds that accepted tokens of a probe saved.
  void refund(double seconds) { probes_.refund(seconds); }

  // Returns the drafts for which another round pays: those with a positive value, if together they
  // save more than the round costs. Otherwise those that the budget allows as a probe, or none.
  std::vector<Draft*> select(std::span<const Priced> drafts);
  // What the next tokens are worth to a draft, net of their time and of their rows' cost in
  // verification.
  Value value_of_rest(const Priced& priced, int64_t ahead) const;
  // Seconds of a forward of one row for each of `count` sequences, divided among them.
  double forward_share(size_t count) const;

 private:
  std::vector<Draft*> probes_among(std::span<const Priced> drafts);

  BatchCosts& costs_;
  ProbeBudget probes_;
};

}  // namespace specqd
