#include "draft/policy.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specqd {
namespace {

constexpr double kFirstBudget = 4.0;   // forwards of one sequence that probes may cost at first
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

void DraftPolicy::begin() { probes_.begin(kFirstBudget * costs_.of(1)->seconds(1.0)); }

void DraftPolicy::pass(std::span<const DraftRequest> requests) {
  double seconds = 0.0;
  for (const DraftRequest& request : requests)
    seconds += std::min(request.token_value_s, kLongestRound);
  // A probe teaches from every sequence of a batch, so the batch waits longer for the next.
  if (!requests.empty()) probes_.pass(seconds / static_cast<double>(requests.size()));
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
  double value = 0.0;
  for (Draft* draft : all) {
    const DraftRequest& request = draft->request;
    if (request.token_value_s == kAlwaysDraft) return all;
    const auto at = static_cast<double>(draft->count());
    const double follows = acceptance(*request.sequence).next.probability(draft->confidence);
    const double round = round_value(request, at, draft->proposal.reached, follows);
    if (round <= 0.0) continue;
    going.push_back(draft);
    value += round;
  }
  if (!going.empty() && value > round_seconds(going.size())) return going;
  if (!probes_.is_open()) return {};
  for (Draft* draft : all)
    draft->proposal.probe_from = std::min(draft->proposal.probe_from, draft->count());
  return all;
}

double DraftPolicy::proposal_value(const DraftRequest& request, int64_t longest, size_t count) {
  if (request.token_value_s == kAlwaysDraft) return 0.0;
  const Calibration& next = acceptance(*request.sequence).next;
  const double cost = round_seconds(count) / static_cast<double>(count);
  double follows = next.probability(request.confidence);
  double value = 0.0, reached = 1.0;
  for (double at = 0.0; at + made() <= static_cast<double>(longest); at += made()) {
    const double round = round_value(request, at, reached, follows) - cost;
    if (round <= 0.0) break;  // and no later one pays: prices rise and chances fall
    value += round;
    reached *= std::pow(follows, made());
    follows = next.mean();  // confidences of later tokens are not known yet
  }
  return value;
}

// Seconds that the tokens of a round from place `at` on save, less what their rows add to
// verification. `reached` is the chance that the tokens before it are accepted, `follows` the
// chance that each further one is.
double DraftPolicy::round_value(const DraftRequest& request, double at, double reached,
                                double follows) const {
  const double accepted =
      follows >= 1.0 ? made() : follows * (1.0 - std::pow(follows, made())) / (1.0 - follows);
  return reached * request.token_value_s * accepted -
         (request.added_seconds(at + made()) - request.added_seconds(at));
}

double DraftPolicy::round_seconds(size_t count) {
  const double rows = rows_.value().value_or(1.0) * static_cast<double>(count);
  return costs_.of(count)->seconds(rows) + overhead_[std::bit_width(count)].value().value_or(0.0);
}

}  // namespace specqd
