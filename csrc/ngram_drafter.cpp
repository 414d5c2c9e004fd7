#include "ngram_drafter.h"

#include <algorithm>
#include <utility>

namespace specqd {
namespace {

constexpr int64_t kLongestProposal = 32;
constexpr double kLeastProbability = 0.05;  // that all is right: past it, no token is worth its row
constexpr double kLeastStated = 0.01;       // the same before calibration, which may raise it
constexpr size_t kPatience = 4;             // with tokens that do not pay, before one that may
// Looking takes time too, and where it brings nothing it may take this share of what tokens save.
constexpr double kLookSeconds = 2e-6, kLookShare = 0.002;
constexpr double kFirstRest = 0.125, kLongestRest = 16.0;  // tokens
constexpr double kCaution = 1.4;  // what is chosen for looking good looks better than it is

}  // namespace

std::vector<Proposal> NgramDrafter::propose(std::span<const Ask> asks) {
  std::vector<Proposal> proposals;
  proposals.reserve(asks.size());
  for (const Ask& ask : asks) proposals.push_back(propose(ask));
  return proposals;
}

void NgramDrafter::observe(const Ask& ask, const Proposal& proposal, size_t accepted) {
  for (size_t i = 0; i < std::min(proposal.confidences.size(), accepted + 1); ++i)
    calibration(*ask.sequence, i == 0).observe(proposal.confidences[i], i < accepted);
  const auto known = texts_.find(ask.sequence->key);
  if (accepted == 0 || known == texts_.end()) return;
  known->second.rest = 0.0;
  known->second.rest_end = 0;
}

std::vector<double> NgramDrafter::chances(const Ask& ask, const Proposal& proposal) {
  std::vector<double> chances;
  for (const double confidence : proposal.confidences)
    chances.push_back(calibration(*ask.sequence, chances.empty()).probability(confidence));
  return chances;
}

bool NgramDrafter::is_silent(const Sequence& sequence) const {
  if (length_) return false;
  const auto known = texts_.find(sequence.key);
  return known != texts_.end() && sequence.tokens.size() < known->second.rest_end;
}

void NgramDrafter::release(const std::shared_ptr<Sequence>& sequence) {
  texts_.erase(sequence->key);
}

Proposal NgramDrafter::propose(const Ask& ask) {
  const int64_t most = std::min(ask.at_most, length_.value_or(kLongestProposal));
  if (most <= 0) return {};
  const Sequence& sequence = *ask.sequence;
  if (is_silent(sequence)) return {};
  Text& text = this->text(ask.sequence);
  const auto guesses = std::span(sequence.tokens).subspan(text.length);
  const Limits limits{static_cast<size_t>(most), length_ ? 0.0 : kLeastStated};
  auto [tokens, confidences] = text.index.propose(guesses, limits, corpus_.get());
  size_t count = length_ ? tokens.size() : worthwhile(ask, confidences);
  if (count < tokens.size() && !text.withheld) {
    std::vector<int32_t> said(guesses.begin(), guesses.end());
    said.insert(said.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count) + 1);
    text.withheld = {std::move(said), confidences[count], count == 0};
  }
  const double longest = std::min(kLookSeconds / (kLookShare * ask.gain), kLongestRest);
  text.rest = std::min(std::max(kFirstRest, 2.0 * text.rest), longest);
  if (text.rest >= 1.0) text.rest_end = sequence.tokens.size() + 1 + static_cast<size_t>(text.rest);
  Proposal said{std::move(tokens), std::move(confidences)};
  const auto stop = std::find_if(said.tokens.begin(), said.tokens.end(),
                                 [&](int32_t token) { return sequence.is_stop(token); });
  if (stop != said.tokens.end())
    count = std::min(count, static_cast<size_t>(stop - said.tokens.begin()) + 1);
  said.cut(count);
  return said;
}

// The sequence's index with all of its accepted tokens.
NgramDrafter::Text& NgramDrafter::text(const std::shared_ptr<Sequence>& sequence) {
  Text& text = texts_[sequence->key];
  const size_t accepted = sequence->num_accepted();
  if (text.sequence.get() != sequence.get() || text.length > accepted) text = {sequence};
  if (text.length < accepted) {
    const auto next = std::span(sequence->tokens).subspan(text.length, accepted - text.length);
    if (text.withheld) learn(*sequence, *text.withheld, next);
    text.withheld.reset();
    text.index.append(next);
    text.length = accepted;
  }
  return text;
}

// What was not worth its row is checked all the same, once the text has come that far: whoever
// stopped proposing finds out when to begin again.
void NgramDrafter::learn(const Sequence& sequence, const Withheld& withheld,
                         std::span<const int32_t> next) {
  const size_t at = withheld.tokens.size() - 1;
  if (next.size() > at &&
      std::equal(next.begin(), next.begin() + static_cast<ptrdiff_t>(at), withheld.tokens.begin()))
    calibration(sequence, withheld.is_first)
        .observe(withheld.confidence, next[at] == withheld.tokens[at]);
}

// How many tokens bring most: making them costs nothing, verifying them costs rows.
size_t NgramDrafter::worthwhile(const Ask& ask, std::span<const double> confidences) {
  double likely = 1.0, brought = 0.0, most = 0.0;
  size_t best = 0;
  for (size_t count = 1; count <= confidences.size(); ++count) {
    likely *= calibration(*ask.sequence, count == 1).probability(confidences[count - 1]);
    if (likely <= kLeastProbability || ask.gain <= 0.0 || count - best > kPatience) break;
    brought += likely * ask.gain;
    const double net = brought - kCaution * ask.added_seconds(static_cast<double>(count));
    if (ask.gain == kWhateverItCosts || net > most) {
      best = count;
      most = net;
    }
  }
  return best;
}

Calibration& NgramDrafter::calibration(const Sequence& sequence, bool is_first) {
  return calibrations_[sequence.is_sampled][is_first];
}

}  // namespace specqd
