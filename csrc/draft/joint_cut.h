// Decides how many tokens of a finished proposal go to the verifier.
#pragma once

#include <span>

#include "draft/drafter.h"

namespace specqd {

// Keeps the first tokens of the proposal that together save most, or all of them if `keeps_all`.
// Returns their value without the cost of making them; 0 if the request states no value of a token.
// `chances[i]` is the chance that token i is accepted if those before it are.
//
// What is not proposed in this round can be proposed in the next: a token is worth no more than
// this round takes per token.
Value cut_jointly(const DraftRequest& request, std::span<const double> chances, bool keeps_all,
                  Proposal& proposal);

}  // namespace specqd
