#include "prospects.h"

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
constexpr double kLongestRound = 1.0;   // seconds of the outer level's, for what may go into trying
constexpr double kLeastBesides = 1e-6;  // seconds; an estimate grows by shares of itself

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

Ask Draft::to_ask() const {
  Ask left = ask;
  left.at_most = is_alone ? 1 : longest - count();
  left.gain = product * ask.gain;
  left.confidence = confidence;
  left.rows = ask.rows + ask.sharing * count();
  return left;
}

void Draft::add(Proposal step, std::span<const double> chances) {
  is_done = step.is_empty();
  if (is_done) return;
  const auto stop = std::find_if(step.tokens.begin(), step.tokens.end(),
                                 [this](int32_t token) { return ask.sequence->is_stop(token); });
  if (stop != step.tokens.end()) {
    step.cut(static_cast<size_t>(stop - step.tokens.begin()) + 1);
    is_done = true;
  }
  for (const double chance : chances.first(std::min(chances.size(), step.tokens.size())))
    product *= chance;
  confidence = step.confidences.back();
  proposal.append(step);
  ask.sequence->guess(step.tokens);
}

Prospects::Prospects(BatchCosts& costs) : costs_(costs) {}

void Prospects::lend() { probes_.lend(kLentRounds * costs_.of(1)->seconds(1.0)); }

void Prospects::begin(std::span<const Ask> asks) {
  double seconds = 0.0;
  for (const Ask& ask : asks) seconds += std::min(ask.gain, kLongestRound);
  // A probe teaches as much of each text: many may wait the longer for the next.
  if (!asks.empty()) probes_.earn(seconds / static_cast<double>(asks.size()));
}

bool Prospects::is_pause(size_t count) {
  if (count == 1) return false;
  return ++asked_[std::bit_width(count)] % kPauseEvery == kFirstPause;
}

void Prospects::learn(size_t count, size_t made, int64_t rows, double besides) {
  const auto texts = static_cast<double>(count);
  besides_[std::bit_width(count)].add(std::max(besides, kLeastBesides));
  rows_.add(static_cast<double>(rows) / texts);
  made_.add(static_cast<double>(made) / texts);
}

bool Prospects::are_hopeless(std::span<const Ask> asks) {
  double best = 0.0;
  for (const Ask& ask : asks) best = std::max(best, ask.gain);
  if (best == kWhateverItCosts) return false;
  const auto count = static_cast<double>(asks.size());
  const double cost = round_seconds(asks.size(), rows_each() * count);
  const double loss = cost - count * (best - asks[0].added_seconds(1.0));
  return loss > 0.0 && !probes_.has(cost, loss);
}

std::vector<Draft*> Prospects::worthwhile(std::span<Draft* const> drafts,
                                          std::span<const Proposal> foreseen, Drafter& drafter) {
  const std::vector<Draft*> all(drafts.begin(), drafts.end());
  for (const Draft* draft : drafts)
    if (draft->ask.gain == kWhateverItCosts) return all;
  std::vector<Draft*> going;
  double brought = 0.0, rows = 0.0, lost = 0.0, all_rows = 0.0;
  const auto count = static_cast<double>(drafts.size());
  size_t foreseen_tokens = 0;
  for (const Proposal& each : foreseen) foreseen_tokens += each.tokens.size();
  const double cost_each = round_seconds(drafts.size(), rows_each() * count) / count;
  const double foreseen_each =
      static_cast<double>(foreseen_tokens) / static_cast<double>(all.front()->ask.sharing);
  for (size_t i = 0; i < drafts.size(); ++i) {
    const double brings = this->brings(*drafts[i], foreseen[i], foreseen_each, cost_each, drafter);
    const double own_rows =
        drafter.is_free() ? 1.0 + static_cast<double>(foreseen[i].tokens.size()) : rows_each();
    lost -= brings;
    all_rows += own_rows;
    if (brings > 0.0) {
      going.push_back(drafts[i]);
      brought += brings;
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
double Prospects::brings(const Draft& draft, const Proposal& foreseen, double foreseen_each,
                         double cost, Drafter& drafter) {
  const Ask& ask = draft.ask;
  const bool is_free = drafter.is_free();
  const auto at = static_cast<double>(draft.count());
  const auto count = static_cast<double>(foreseen.tokens.size());
  const double worth = draft.product * ask.gain;
  const double follows = trust(*ask.sequence).next.probability(draft.confidence);
  if (foreseen.is_empty()) return ahead(draft, at, worth, follows, cost, is_free) + cost;
  const std::vector<double> chances = drafter.chances(ask, foreseen);
  const auto [right, through] = expected(chances);
  const auto [right_unseen, through_unseen] = expected(chances_unseen(ask, chances));
  const double made = 1.0 + right, added = ask.added_seconds(at);
  const double looked_at = worth * follows * made - (ask.added_seconds(at + made) - added);
  const double foreseen_seconds = ask.added_seconds(at + foreseen_each) - added;
  const double passed_on = worth * right_unseen - count * foreseen_seconds / foreseen_each;
  const double then =
      ahead(draft, at + made, worth * std::pow(follows, made), follows, cost, is_free);
  const double else_then = ahead(draft, at + count, worth * through_unseen, follows, cost, is_free);
  return looked_at + std::max(then, 0.0) - std::max(passed_on + std::max(else_then, 0.0), 0.0);
}

std::vector<double> Prospects::chances_unseen(const Ask& ask, std::vector<double> chances) {
  const double fulfilled = trust(*ask.sequence).passed_on.share();
  for (double& chance : chances) chance = std::min(fulfilled * chance, 1.0);
  return chances;
}

// What the best number of rounds from place `at` on is worth, less what they cost. Some pay only
// with those after them: rows do not all cost the same.
double Prospects::ahead(const Draft& draft, double at, double worth, double follows, double cost,
                        bool is_free) const {
  const double made = is_free ? 1.0 : made_.value().value_or(1.0);
  const double added = draft.ask.added_seconds(at);
  double most = -kWhateverItCosts;
  for (const double rounds : kRoundsAhead) {
    const double tokens = made * rounds;
    if (rounds > 1.0 && at + tokens > static_cast<double>(draft.longest)) break;
    const double right =
        follows >= 1.0 ? tokens : follows * (1.0 - std::pow(follows, tokens)) / (1.0 - follows);
    const double costs = draft.ask.added_seconds(at + tokens) - added + rounds * cost;
    most = std::max(most, worth * right - costs);
  }
  return most;
}

double Prospects::round_seconds(size_t count, double rows) {
  const double besides = besides_[std::bit_width(count)].value().value_or(0.0);
  return costs_.of(count)->seconds(rows) + besides;
}

}  // namespace specqd
