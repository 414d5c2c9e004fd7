#include "draft/policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

namespace specqd {
namespace {

constexpr std::array<double, 4> kRoundsAhead{1, 2, 4, 8};
constexpr double kLentRounds = 4.0;  // of a single text: what may be lost to begin with, since what
                                     // was measured at load may be wrong: the machine was busy
constexpr int64_t kFirstPause = 8, kPauseEvery = 64;  // rounds of a batch
constexpr double kLongestRound = 1.0;  // seconds of the outer level's, for what may go into trying
constexpr double kLeastOverhead = 1e-6;  // seconds; an estimate grows by shares of itself

struct Expected {
  double right = 0.0, through = 1.0;  // tokens that are right; the chance that all are
};

Expected expected(std::span<const double> chances) {
  Expected all;
  for (const double chance : chances) {
    all.through *= chance;
    all.right += all.through;
  }
  return all;
}

}  // namespace

DraftRequest Draft::to_request() const {
  DraftRequest left = request;
  left.at_most = is_alone ? 1 : longest - count();
  left.token_value_s = product * request.token_value_s;
  left.confidence = confidence;
  left.rows = request.rows + request.sharing * count();
  return left;
}

void Draft::add(Proposal step, std::span<const double> chances) {
  is_done = step.is_empty();
  if (is_done) return;
  const auto stop = std::find_if(step.tokens.begin(), step.tokens.end(), [this](int32_t token) {
    return request.sequence->is_stop(token);
  });
  if (stop != step.tokens.end()) {
    step.cut(static_cast<size_t>(stop - step.tokens.begin()) + 1);
    is_done = true;
  }
  for (const double chance : chances.first(std::min(chances.size(), step.tokens.size())))
    product *= chance;
  confidence = step.confidences.back();
  proposal.append(step);
  request.sequence->guess(step.tokens);
}

DraftPolicy::DraftPolicy(BatchCosts& costs) : costs_(costs) {}

void DraftPolicy::lend() { probes_.lend(kLentRounds * costs_.of(1)->seconds(1.0)); }

void DraftPolicy::begin(std::span<const DraftRequest> requests) {
  double seconds = 0.0;
  for (const DraftRequest& request : requests)
    seconds += std::min(request.token_value_s, kLongestRound);
  // A probe teaches as much of each text: many may wait the longer for the next.
  if (!requests.empty()) probes_.earn(seconds / static_cast<double>(requests.size()));
}

bool DraftPolicy::is_pause(size_t count) {
  if (count == 1) return false;
  return ++asked_[std::bit_width(count)] % kPauseEvery == kFirstPause;
}

void DraftPolicy::learn(size_t count, size_t made, int64_t rows, double overhead_s) {
  const auto texts = static_cast<double>(count);
  overhead_s_[std::bit_width(count)].add(std::max(overhead_s, kLeastOverhead));
  rows_.add(static_cast<double>(rows) / texts);
  made_.add(static_cast<double>(made) / texts);
}

bool DraftPolicy::cannot_pay(std::span<const DraftRequest> requests) {
  double best = 0.0;
  for (const DraftRequest& request : requests) best = std::max(best, request.token_value_s);
  if (best == kAlwaysDraft) return false;
  const auto count = static_cast<double>(requests.size());
  const double cost = round_seconds(requests.size(), rows_each() * count);
  const double loss = cost - count * (best - requests[0].added_seconds(1.0));
  return loss > 0.0 && !probes_.has(cost, loss);
}

std::vector<Draft*> DraftPolicy::should_draft(std::span<Draft* const> drafts,
                                              std::span<const Proposal> expected_proposal,
                                              Drafter& drafter) {
  const std::vector<Draft*> all(drafts.begin(), drafts.end());
  for (const Draft* draft : drafts)
    if (draft->request.token_value_s == kAlwaysDraft) return all;
  std::vector<Draft*> going;
  double brought = 0.0, rows = 0.0, lost = 0.0, all_rows = 0.0;
  const auto count = static_cast<double>(drafts.size());
  size_t foreseen_tokens = 0;
  for (const Proposal& each : expected_proposal) foreseen_tokens += each.tokens.size();
  const double cost_each = round_seconds(drafts.size(), rows_each() * count) / count;
  const double foreseen_each =
      static_cast<double>(foreseen_tokens) / static_cast<double>(all.front()->request.sharing);
  for (size_t i = 0; i < drafts.size(); ++i) {
    const double round_value =
        this->round_value(*drafts[i], expected_proposal[i], foreseen_each, cost_each, drafter);
    const double own_rows = drafter.is_free()
                                ? 1.0 + static_cast<double>(expected_proposal[i].tokens.size())
                                : rows_each();
    lost -= round_value;
    all_rows += own_rows;
    if (round_value > 0.0) {
      going.push_back(drafts[i]);
      brought += round_value;
      rows += own_rows;
    }
  }
  if (!going.empty() && brought > round_seconds(going.size(), rows)) return going;
  const double cost = round_seconds(drafts.size(), all_rows);
  if (!probes_.allows(cost, cost + lost)) return {};
  for (Draft* draft : all)
    draft->proposal.tried = std::min(draft->proposal.tried, static_cast<double>(draft->count()));
  return all;
}

// Seconds that a round of this level is worth to whoever asked, before its own cost, and beyond
// what the drafter's word is worth when it is passed on. `foreseen_each`: tokens of that in all, by
// the texts of the batch, which have more or less of it. `cost` is this draft's share of each round
// to come.
double DraftPolicy::round_value(const Draft& draft, const Proposal& expected_proposal,
                                double foreseen_each, double cost, Drafter& drafter) {
  const DraftRequest& request = draft.request;
  const bool is_free = drafter.is_free();
  const auto at = static_cast<double>(draft.count());
  const auto count = static_cast<double>(expected_proposal.tokens.size());
  const double worth = draft.product * request.token_value_s;
  const double follows = acceptance(*request.sequence).next.probability(draft.confidence);
  if (expected_proposal.is_empty())
    return lookahead_value(draft, at, worth, follows, cost, is_free) + cost;
  const std::vector<double> chances = drafter.chances(request, expected_proposal);
  const auto [right, through] = expected(chances);
  const auto [right_unseen, through_unseen] = expected(chances_unseen(request, chances));
  const double made = 1.0 + right, added = request.added_seconds(at);
  const double looked_at = worth * follows * made - (request.added_seconds(at + made) - added);
  const double foreseen_seconds = request.added_seconds(at + foreseen_each) - added;
  const double bypass_bias = worth * right_unseen - count * foreseen_seconds / foreseen_each;
  const double then =
      lookahead_value(draft, at + made, worth * std::pow(follows, made), follows, cost, is_free);
  const double else_then =
      lookahead_value(draft, at + count, worth * through_unseen, follows, cost, is_free);
  return looked_at + std::max(then, 0.0) - std::max(bypass_bias + std::max(else_then, 0.0), 0.0);
}

std::vector<double> DraftPolicy::chances_unseen(const DraftRequest& request,
                                                std::vector<double> chances) {
  const double fulfilled = acceptance(*request.sequence).bypass_bias.share();
  for (double& chance : chances) chance = std::min(fulfilled * chance, 1.0);
  return chances;
}

// What the best number of rounds from place `at` on is worth, less what they cost. Some pay only
// with those after them: rows do not all cost the same.
double DraftPolicy::lookahead_value(const Draft& draft, double at, double worth, double follows,
                                    double cost, bool is_free) const {
  const double made = is_free ? 1.0 : made_.value().value_or(1.0);
  const double added = draft.request.added_seconds(at);
  double most = -kAlwaysDraft;
  for (const double rounds : kRoundsAhead) {
    const double tokens = made * rounds;
    if (rounds > 1.0 && at + tokens > static_cast<double>(draft.longest)) break;
    const double right =
        follows >= 1.0 ? tokens : follows * (1.0 - std::pow(follows, tokens)) / (1.0 - follows);
    const double costs = draft.request.added_seconds(at + tokens) - added + rounds * cost;
    most = std::max(most, worth * right - costs);
  }
  return most;
}

double DraftPolicy::round_seconds(size_t count, double rows) {
  const double overhead_s = overhead_s_[std::bit_width(count)].value().value_or(0.0);
  return costs_.of(count)->seconds(rows) + overhead_s;
}

}  // namespace specqd
