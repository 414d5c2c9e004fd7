#include "draft/policy.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specqd {
namespace {

constexpr double kFirstBudget = 4.0;   // forwards of one sequence that probes may cost at first
constexpr int kMostRoundsAhead = 16;   // that are weighed together
constexpr double kLongestRound = 1.0;  // seconds of the verifier's that count for probes

}  // namespace

DraftRequest Draft::rest() const {
  DraftRequest left = request;
  left.at_most = longest - count();
  left.token_value_s = proposal.reached * request.token_value_s;
  left.confidence = confidence;
  left.rows = request.rows + request.sharing * count();
  return left;
}

void Draft::add(Proposal step) {
  is_done = step.is_empty();
  if (is_done) return;
  const auto stop = std::find_if(step.tokens.begin(), step.tokens.end(), [this](int32_t token) {
    return request.sequence->is_stop(token);
  });
  if (stop != step.tokens.end()) {
    step.cut(static_cast<size_t>(stop - step.tokens.begin()) + 1);
    is_done = true;
  }
  confidence = step.confidences.back();
  proposal.append(step);
  request.sequence->guess(step.tokens);
}

std::vector<DraftRequest> rests_of(std::span<Draft* const> drafts) {
  std::vector<DraftRequest> rests;
  rests.reserve(drafts.size());
  for (const Draft* draft : drafts) rests.push_back(draft->rest());
  return rests;
}

void DraftPolicy::begin() { probes_.begin(kFirstBudget * costs_.of(1)->seconds(1.0)); }

void DraftPolicy::pass(std::span<const DraftRequest> requests) {
  // A probe teaches from every sequence of a batch, so the batch waits longer for the next.
  for (const DraftRequest& request : requests)
    if (request.rows == request.sharing)  // a proposal's later parts belong to the same round
      probes_.pass(std::min(request.token_value_s, kLongestRound) /
                   static_cast<double>(request.sharing));
}

void DraftPolicy::learn(std::span<Draft* const> drafts, const Round& round) {
  const auto sequences = static_cast<double>(drafts.size());
  overhead_[std::bit_width(drafts.size())].add(round.overhead_s);
  rows_.add(static_cast<double>(round.rows) / sequences);
  made_.add(static_cast<double>(round.tokens) / sequences);
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
  std::vector<Draft*> all(drafts.begin(), drafts.end()), going;
  const double share = round_seconds(all.size()) / static_cast<double>(all.size());
  double value = 0.0;  // without the cost of the next round, which is that of fewer drafts
  for (Draft* draft : all) {
    if (draft->request.token_value_s == kAlwaysDraft) return all;
    const Calibration& next = acceptance(*draft->request.sequence).next;
    const double saved = value_of_rest(*draft, next.probability(draft->confidence), share);
    if (saved <= 0.0) continue;
    going.push_back(draft);
    value += saved + share;
  }
  if (!going.empty() && value > round_seconds(going.size())) return going;
  return probes_among(all);
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

double DraftPolicy::proposal_value(const DraftRequest& request, int64_t longest, size_t count) {
  if (request.token_value_s == kAlwaysDraft || longest <= 0) return 0.0;
  const Calibration& next = acceptance(*request.sequence).next;
  return value_of_rest(Draft(request, longest), next.cautious_probability(request.confidence),
                       round_seconds(count) / static_cast<double>(count));
}

// Seconds that the best number of further rounds saves, net of their rows' cost in verification
// and of `round_share` for each round; at most 0 where none pays. `follows`: the chance of the next
// token. The first row of a verification may cost more than the next, so a round may pay only with
// those after it.
double DraftPolicy::value_of_rest(const Draft& draft, double follows, double round_share) {
  const DraftRequest& request = draft.request;
  const Calibration& next = acceptance(*request.sequence).next;
  double reached = draft.proposal.reached, best = -kAlwaysDraft, saved = 0.0;
  auto at = static_cast<double>(draft.count());
  const auto longest = static_cast<double>(draft.longest);
  for (int round = 0; round < kMostRoundsAhead && at < longest; ++round) {
    const double tokens = std::min(made(), longest - at), all = std::pow(follows, tokens);
    const double accepted = follows < 1.0 ? follows * (1.0 - all) / (1.0 - follows) : tokens;
    saved += reached * request.token_value_s * accepted - round_share -
             (request.added_seconds(at + tokens) - request.added_seconds(at));
    best = std::max(best, saved);
    reached *= all;
    at += tokens;
    follows = std::min(follows, next.mean());  // the confidence in later tokens is not known yet
  }
  return best;
}

double DraftPolicy::round_seconds(size_t count) {
  const double rows = rows_.value().value_or(1.0) * static_cast<double>(count);
  return costs_.of(count)->seconds(rows) + overhead_[std::bit_width(count)].value().value_or(0.0);
}

}  // namespace specqd
