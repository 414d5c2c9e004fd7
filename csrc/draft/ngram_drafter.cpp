#include "draft/ngram_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace specqd {
namespace {

constexpr double kLeastReached = 0.05;  // the chance that all is accepted, below which tokens end
constexpr double kLeastStated = 0.01;   // the same before calibration, which may raise it
constexpr double kCaution = 1.4;        // times its price that a token must save: selection bias

}  // namespace

std::vector<Proposal> NgramDrafter::propose(std::span<const DraftRequest> requests) {
  std::vector<Candidate> candidates = weigh(requests);
  std::vector<Proposal> proposals;
  proposals.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    withhold(*requests[i].sequence, candidates[i], candidates[i].count);
    Proposal& proposal = proposals.emplace_back(std::move(candidates[i].proposal));
    proposal.cut(candidates[i].count);
    for (size_t place = 0; place < proposal.tokens.size(); ++place)
      proposal.reached *=
          calibration(*requests[i].sequence, place == 0).probability(proposal.confidences[place]);
  }
  return proposals;
}

std::vector<double> NgramDrafter::values(std::span<const DraftRequest> requests) {
  std::vector<double> values;
  values.reserve(requests.size());
  const std::vector<Candidate> candidates = weigh(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    withhold(*requests[i].sequence, candidates[i], 0);
    values.push_back(candidates[i].value);
  }
  return values;
}

void NgramDrafter::observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) {
  for (size_t i = 0; i < std::min(proposal.confidences.size(), accepted + 1); ++i)
    calibration(*request.sequence, i == 0).observe(proposal.confidences[i], i < accepted);
}

void NgramDrafter::release(const std::shared_ptr<Sequence>& sequence) {
  indexed_.erase(sequence->key);
}

std::vector<NgramDrafter::Candidate> NgramDrafter::weigh(std::span<const DraftRequest> requests) {
  std::vector<Candidate> candidates;
  candidates.reserve(requests.size());
  for (const DraftRequest& request : requests) candidates.push_back(look_up(request));
  choose_counts(requests, candidates);
  return candidates;
}

NgramDrafter::Candidate NgramDrafter::look_up(const DraftRequest& request) {
  const int64_t most = std::min(request.at_most, length_.value_or(kLongestProposal));
  if (most <= 0) return {};
  const Sequence& sequence = *request.sequence;
  Indexed& indexed = this->indexed(request.sequence);
  const auto guesses = std::span(sequence.tokens).subspan(indexed.length);
  if (!indexed.found || indexed.found->at_most != most ||
      !std::ranges::equal(indexed.found->guesses, guesses)) {
    const Limits limits{static_cast<size_t>(most), length_ ? 0.0 : kLeastStated};
    auto [tokens, confidences] = indexed.index.propose(guesses, limits, corpus_.get());
    const auto stop =
        std::ranges::find_if(tokens, [&](int32_t token) { return sequence.is_stop(token); });
    const bool stops = stop != tokens.end();
    const auto length = static_cast<size_t>(stop - tokens.begin()) + stops;
    indexed.found = {
        {guesses.begin(), guesses.end()}, most, {std::move(tokens), std::move(confidences)}};
    indexed.found->proposal.cut(length);
  }
  return {indexed.found->proposal, &indexed};
}

// Remembers the token after the first `count`, so that it is scored although nobody verifies it:
// the calibration of a drafter that stopped proposing recovers by that.
void NgramDrafter::withhold(const Sequence& sequence, const Candidate& candidate, size_t count) {
  const std::vector<int32_t>& tokens = candidate.proposal.tokens;
  if (candidate.indexed == nullptr) return;
  Indexed& indexed = *candidate.indexed;
  const size_t start = sequence.tokens.size();
  if (indexed.withheld && indexed.withheld->start != start) return;
  indexed.withheld.reset();
  if (count >= tokens.size()) return;
  std::vector<int32_t> until(sequence.tokens.begin() + static_cast<ptrdiff_t>(indexed.length),
                             sequence.tokens.end());
  until.insert(until.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count) + 1);
  indexed.withheld = {std::move(until), start, candidate.proposal.confidences[count], count == 0};
}

// The sequence's index with all of its accepted tokens.
NgramDrafter::Indexed& NgramDrafter::indexed(const std::shared_ptr<Sequence>& sequence) {
  Indexed& indexed = indexed_[sequence->key];
  const size_t accepted = sequence->num_accepted();
  if (indexed.sequence.get() != sequence.get() || indexed.length > accepted) indexed = {sequence};
  if (indexed.length < accepted) {
    const auto next =
        std::span(sequence->tokens).subspan(indexed.length, accepted - indexed.length);
    if (indexed.withheld) learn(*sequence, *indexed.withheld, next);
    indexed.withheld.reset();
    indexed.found.reset();
    indexed.index.append(next);
    indexed.length = accepted;
  }
  return indexed;
}

void NgramDrafter::learn(const Sequence& sequence, const Withheld& withheld,
                         std::span<const int32_t> next) {
  const size_t at = withheld.tokens.size() - 1;
  if (next.size() > at &&
      std::equal(next.begin(), next.begin() + static_cast<ptrdiff_t>(at), withheld.tokens.begin()))
    calibration(sequence, withheld.is_first)
        .observe(withheld.confidence, next[at] == withheld.tokens[at]);
}

// Takes the tokens of all sequences together, the most valuable first, up to the number that saves
// most: proposing costs nothing, and what a row costs depends on all rows that are added.
void NgramDrafter::choose_counts(std::span<const DraftRequest> requests,
                                 std::span<Candidate> candidates) {
  struct Token {
    double value;
    size_t sequence;
  };
  std::vector<Token> tokens;
  double rows = 0.0;  // that are forwarded anyway
  for (size_t i = 0; i < requests.size(); ++i) {
    rows += static_cast<double>(requests[i].rows) / static_cast<double>(requests.size());
    if (length_ || requests[i].token_value_s == kAlwaysDraft) {
      candidates[i].count = candidates[i].proposal.tokens.size();
      continue;
    }
    for (const double value : token_values(requests[i], candidates[i].proposal))
      tokens.push_back({value, i});
  }
  if (tokens.empty()) return;
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.value > b.value; });
  DraftRequest all = requests.front();
  all.rows = std::lround(rows);
  const auto sharing = static_cast<double>(all.sharing);
  const auto cost = [&](size_t count) {
    return sharing * all.added_seconds(static_cast<double>(count) / sharing);
  };
  double saved = 0.0, most = 0.0;
  size_t best = 0;
  for (size_t count = 1; count <= tokens.size(); ++count) {
    saved += tokens[count - 1].value;
    if (const double net = saved - kCaution * cost(count); net > most) {
      best = count;
      most = net;
    }
  }
  for (size_t i = 0; i < best; ++i) {
    Candidate& candidate = candidates[tokens[i].sequence];
    candidate.value += tokens[i].value - cost(best) / static_cast<double>(best);
    ++candidate.count;
  }
}

// Seconds that each token saves, up to where it is hardly ever reached.
std::vector<double> NgramDrafter::token_values(const DraftRequest& request,
                                               const Proposal& proposal) {
  std::vector<double> values;
  if (request.token_value_s <= 0.0) return values;
  double reached = 1.0;
  for (const double confidence : proposal.confidences) {
    reached *= calibration(*request.sequence, values.empty()).probability(confidence);
    if (reached <= kLeastReached) break;
    values.push_back(reached * request.token_value_s);
  }
  return values;
}

Calibration& NgramDrafter::calibration(const Sequence& sequence, bool is_first) {
  return calibrations_.of(sequence)[is_first];
}

}  // namespace specqd
