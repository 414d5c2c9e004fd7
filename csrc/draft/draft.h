// Proposals while they are made, round by round. Knows no models and no costs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

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
  int64_t lag = 0;    // unread tokens before the last one, which the next round must read
  bool is_done = false;

  int64_t count() const { return std::ssize(proposal.tokens); }
  // The request for what is left, at the chance that it is reached at all.
  DraftRequest rest() const;
  // Adds the tokens of a step up to the first that ends the sequence. The proposal ends there, or
  // where a step has none. The sequence gets the tokens as guesses.
  void add(Proposal step);
};

// The requests for what is left of drafts.
std::vector<DraftRequest> rests_of(std::span<Draft* const> drafts);

// Makes proposals. A round gets the drafts that may go on; those that it adds nothing to end. The
// sequences lose their guesses again, also when a round throws.
using DraftRound = std::function<void(std::span<Draft* const>)>;
std::vector<Proposal> propose_in_rounds(std::vector<Draft> drafts, const DraftRound& round);

}  // namespace specqd
