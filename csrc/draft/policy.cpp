#include "draft/policy.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specqd {
namespace {

// The first row of a verification may cost more than the next: then a round pays only with another.
constexpr int kRoundsAhead = 2;

}  // namespace

void DraftPolicy::pass(std::span<const DraftRequest> requests) {
  // A probe teaches from every sequence of a batch, so the batch waits longer for the next.
  for (const DraftRequest& request : requests)
    if (request.rows == request.sharing)  // a proposal's later parts belong to the same round
      probes_.pass(request.token_value_s / static_cast<double>(request.sharing));
}

void DraftPolicy::learn(size_t sequences, size_t tokens, double seconds) {
  rounds_[std::bit_width(sequences)].add(seconds);
  made_.add(static_cast<double>(tokens) / static_cast<double>(sequences));
}

// Charges a round's seconds, and those that its tokens add to verification, if it was a probe.
void DraftPolicy::charge(std::span<Draft* const> drafts, double seconds) {
  bool is_probe = false;
  for (const Draft* draft : drafts) {
    if (draft->proposal.probe_from == Proposal::kNever) continue;
    is_probe = true;
    seconds += draft->request.added_seconds(static_cast<double>(draft->count())) -
               draft->request.added_seconds(static_cast<double>(draft->count()) - made());
  }
  if (is_probe) probes_.charge(seconds);
}

std::vector<Draft*> DraftPolicy::select(std::span<Draft* const> drafts) {
  std::vector<Draft*> going;
  const double share = round_share(drafts.size());
  double value = 0.0;  // without the cost of the next round, which is that of fewer drafts
  for (Draft* draft : drafts) {
    if (draft->request.token_value_s == kAlwaysDraft) return {drafts.begin(), drafts.end()};
    const double saved = value_of_rest(*draft, drafts.size());
    if (saved <= 0.0) continue;
    going.push_back(draft);
    value += saved + share;
  }
  const auto count = static_cast<double>(going.size());
  if (!going.empty() && value > count * round_share(going.size())) return going;
  return probes_among(drafts);
}

// The drafts for which the budget pays what they must make up for.
std::vector<Draft*> DraftPolicy::probes_among(std::span<Draft* const> drafts) {
  std::vector<Draft*> probes;
  if (!probes_.is_open()) return probes;
  const RowCosts& costs = *costs_.of(drafts.size());
  const auto usual = static_cast<double>(drafts.size());
  double lag = 0.0;
  for (Draft* draft : drafts) {
    const double all = lag + static_cast<double>(draft->lag);
    if (costs.seconds(usual + all) - costs.seconds(usual) > probes_.saved()) continue;
    lag = all;
    draft->proposal.probe_from = std::min(draft->proposal.probe_from, draft->count());
    probes.push_back(draft);
  }
  return probes;
}

double DraftPolicy::value_of_rest(const Draft& draft, size_t count) const {
  const DraftRequest& request = draft.request;
  const double follows = acceptance.next.probability(draft.confidence);
  double reached = draft.proposal.reached, saved = 0.0, best = 0.0;
  int64_t at = draft.count();
  for (int round = 0; round < kRoundsAhead && at < draft.longest; ++round) {
    const double tokens = std::min(made(), static_cast<double>(draft.longest - at));
    const double all = std::pow(follows, tokens);
    const double accepted = follows < 1.0 ? follows * (1.0 - all) / (1.0 - follows) : tokens;
    const auto before = static_cast<double>(at);
    saved += reached * request.token_value_s * accepted - round_share(count) -
             (request.added_seconds(before + tokens) - request.added_seconds(before));
    best = std::max(best, saved);
    reached *= all;
    at += std::lround(tokens);
  }
  return best;
}

double DraftPolicy::round_share(size_t count) const {
  const auto sequences = static_cast<double>(count);
  const auto known = rounds_.find(std::bit_width(count));
  return (known != rounds_.end() ? *known->second.value() : costs_.of(count)->seconds(sequences)) /
         sequences;
}

}  // namespace specqd
