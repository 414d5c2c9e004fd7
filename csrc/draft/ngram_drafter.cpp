#include "draft/ngram_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace specqd {
namespace {

constexpr int64_t kLongestProposal = 32;
constexpr double kLeastProbability = 0.05;  // that all is right: past it, no token is worth its row
constexpr double kLeastStated = 0.01;       // the same before calibration, which may raise it
constexpr size_t kPatience = 4;             // with tokens that do not pay, before one that may
// Looking takes time too, and where it round_value nothing it may take this share of what tokens
// save.
constexpr double kLookSeconds = 2e-6, kLookShare = 0.002;
constexpr double kFirstRest = 0.125, kLongestRest = 16.0;  // tokens
constexpr double kCaution = 1.4;  // what is chosen for looking good looks better than it is

}  // namespace

std::vector<Proposal> NgramDrafter::propose(std::span<const DraftRequest> requests) {
  std::vector<Candidate> candidate;
  candidate.reserve(requests.size());
  for (const DraftRequest& request : requests) candidate.push_back(look_up(request));
  const std::vector<size_t> counts = should_draft(requests, candidate);
  std::vector<Proposal> proposals;
  proposals.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    proposals.push_back(conclude(requests[i], std::move(candidate[i]), counts[i]));
  return proposals;
}

void NgramDrafter::observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) {
  for (size_t i = 0; i < std::min(proposal.confidences.size(), accepted + 1); ++i)
    calibration(*request.sequence, i == 0).observe(proposal.confidences[i], i < accepted);
  const auto known = texts_.find(request.sequence->key);
  if (accepted == 0 || known == texts_.end()) return;
  known->second.rest = 0.0;
  known->second.rest_end = 0;
}

std::vector<double> NgramDrafter::chances(const DraftRequest& request, const Proposal& proposal) {
  std::vector<double> chances;
  for (const double confidence : proposal.confidences)
    chances.push_back(calibration(*request.sequence, chances.empty()).probability(confidence));
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

NgramDrafter::Candidate NgramDrafter::look_up(const DraftRequest& request) {
  const int64_t most = std::min(request.at_most, length_.value_or(kLongestProposal));
  const Sequence& sequence = *request.sequence;
  if (most <= 0 || is_silent(sequence)) return {};
  Text& text = this->text(request.sequence);
  const auto guesses = std::span(sequence.tokens).subspan(text.length);
  const Limits limits{static_cast<size_t>(most), length_ ? 0.0 : kLeastStated};
  auto [tokens, confidences] = text.index.propose(guesses, limits, corpus_.get());
  Candidate candidate{{std::move(tokens), std::move(confidences)}, &text};
  const std::vector<int32_t>& all = candidate.proposal.tokens;
  const auto stop =
      std::find_if(all.begin(), all.end(), [&](int32_t token) { return sequence.is_stop(token); });
  if (stop != all.end()) candidate.proposal.cut(static_cast<size_t>(stop - all.begin()) + 1);
  return candidate;
}

// The first `count` tokens of what it has to say. The next is held back, and it rests.
Proposal NgramDrafter::conclude(const DraftRequest& request, Candidate candidate, size_t count) {
  auto& [proposal, text] = candidate;
  if (text == nullptr) return {};
  const std::vector<int32_t>& tokens = proposal.tokens;
  if (count < tokens.size() && !text->withheld) {
    std::vector<int32_t> until(
        request.sequence->tokens.begin() + static_cast<ptrdiff_t>(text->length),
        request.sequence->tokens.end());
    until.insert(until.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count) + 1);
    text->withheld = {std::move(until), proposal.confidences[count], count == 0};
  }
  const double longest =
      std::min(kLookSeconds / (kLookShare * request.token_value_s), kLongestRest);
  text->rest = std::min(std::max(kFirstRest, 2.0 * text->rest), longest);
  if (text->rest >= 1.0)
    text->rest_end = request.sequence->tokens.size() + 1 + static_cast<size_t>(text->rest);
  proposal.cut(count);
  return std::move(proposal);
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

// How many tokens of each text bring most: making them costs nothing, verifying them costs rows.
//
// Texts of a batch have more or less to say, and what a row costs depends on all that are added: so
// their tokens are taken together, the worthiest first. A later token of a text is worth less than
// those before it.
std::vector<size_t> NgramDrafter::should_draft(std::span<const DraftRequest> requests,
                                               std::span<const Candidate> candidate) {
  std::vector<size_t> counts(requests.size());
  struct Token {
    double worth;
    size_t text;
  };
  std::vector<Token> tokens;
  double rows = 0.0;  // that are forwarded anyway
  for (size_t i = 0; i < requests.size(); ++i) {
    rows += static_cast<double>(requests[i].rows) / static_cast<double>(requests.size());
    if (length_) {
      counts[i] = candidate[i].proposal.tokens.size();
      continue;
    }
    const std::vector<double> token_values = this->token_values(requests[i], candidate[i].proposal);
    if (requests[i].token_value_s == kAlwaysDraft)
      counts[i] = token_values.size();
    else
      for (const double worth : token_values) tokens.push_back({worth, i});
  }
  if (tokens.empty()) return counts;
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.worth > b.worth; });
  DraftRequest all = requests.front();
  all.rows = static_cast<int64_t>(std::lround(rows));
  const auto sharing = static_cast<double>(all.sharing);
  double brought = 0.0, most = 0.0;
  size_t best = 0;
  for (size_t count = 1; count <= tokens.size() && count - best <= kPatience; ++count) {
    brought += tokens[count - 1].worth;
    const double cost = sharing * all.added_seconds(static_cast<double>(count) / sharing);
    if (const double net = brought - kCaution * cost; net > most) {
      best = count;
      most = net;
    }
  }
  for (size_t i = 0; i < best; ++i) ++counts[tokens[i].text];
  return counts;
}

// What each token is worth, in seconds, up to where it is hardly ever reached.
std::vector<double> NgramDrafter::token_values(const DraftRequest& request,
                                               const Proposal& proposal) {
  std::vector<double> token_values;
  if (request.token_value_s <= 0.0) return token_values;
  double likely = 1.0;
  for (const double confidence : proposal.confidences) {
    likely *= calibration(*request.sequence, token_values.empty()).probability(confidence);
    if (likely <= kLeastProbability) break;
    token_values.push_back(likely * request.token_value_s);
  }
  return token_values;
}

Calibration& NgramDrafter::calibration(const Sequence& sequence, bool is_first) {
  return calibrations_[sequence.is_sampled][is_first];
}

}  // namespace specqd
