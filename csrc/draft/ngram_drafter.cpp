#include "draft/ngram_drafter.h"

#include <algorithm>
#include <utility>

namespace specqd {
namespace {

constexpr double kLeastStated = 0.01;  // the stated chance that all is accepted, where tokens end

}  // namespace

std::vector<Proposal> NgramDrafter::propose(std::span<const DraftRequest> requests) {
  std::vector<Proposal> proposals;
  proposals.reserve(requests.size());
  for (const DraftRequest& request : requests) proposals.push_back(weigh(request).proposal);
  return proposals;
}

std::vector<Value> NgramDrafter::values(std::span<const DraftRequest> requests) {
  std::vector<Value> values;
  values.reserve(requests.size());
  for (const DraftRequest& request : requests) values.push_back(weigh(request).value);
  return values;
}

void NgramDrafter::observe(const DraftRequest&, const Proposal& proposal, size_t accepted) {
  for (size_t i = 0; i < std::min(proposal.confidences.size(), accepted + 1); ++i)
    calibration_.observe(proposal.confidences[i], i < accepted);
}

void NgramDrafter::release(const std::shared_ptr<Sequence>& sequence) {
  indexed_.erase(sequence->key);
}

// N-grams are accepted in runs, so what this round does not draft, the next one would: a token is
// worth no more than this round takes per token.
NgramDrafter::Weighed NgramDrafter::weigh(const DraftRequest& request) {
  Weighed found{look_up(request)};
  Proposal& proposal = found.proposal;
  const bool takes_all = length_ || request.token_value_s == kAlwaysDraft;
  const double plain_s = request.verification_seconds(0.0);
  const double before = static_cast<double>(request.rows) / static_cast<double>(request.sharing);
  double reached = 1.0, accepted = 0.0, saved = 0.0;
  size_t best = 0;
  for (size_t count = 1; count <= proposal.tokens.size(); ++count) {
    reached *= calibration_.probability(proposal.confidences[count - 1]);
    accepted += reached;
    const double round_s = request.verification_seconds(static_cast<double>(count));
    const double per_token_s = round_s > 0.0 ? round_s / (before + accepted) : kAlwaysDraft;
    saved += reached * std::min(request.token_value_s, per_token_s);
    const double net = saved - (round_s - plain_s);
    if (!takes_all && net <= found.value.saved_s) continue;
    found.value = {takes_all ? 0.0 : net, accepted};
    proposal.reached = reached;
    best = count;
  }
  proposal.cut(best);
  return found;
}

Proposal NgramDrafter::look_up(const DraftRequest& request) {
  const int64_t most = std::min(request.at_most, length_.value_or(kLongestProposal));
  if (most <= 0) return {};
  const Sequence& sequence = *request.sequence;
  const Indexed& indexed = this->indexed(request.sequence);
  const auto guesses = std::span(sequence.tokens).subspan(indexed.length);
  const Limits limits{static_cast<size_t>(most), length_ ? 0.0 : kLeastStated};
  auto [tokens, confidences] = indexed.index.propose(guesses, limits, corpus_.get());
  const auto stop =
      std::ranges::find_if(tokens, [&](int32_t token) { return sequence.is_stop(token); });
  const auto length = static_cast<size_t>(stop - tokens.begin()) + (stop != tokens.end());
  Proposal proposal{std::move(tokens), std::move(confidences)};
  proposal.cut(length);
  return proposal;
}

// The sequence's index with all of its accepted tokens.
NgramDrafter::Indexed& NgramDrafter::indexed(const std::shared_ptr<Sequence>& sequence) {
  Indexed& indexed = indexed_[sequence->key];
  const size_t accepted = sequence->num_accepted();
  if (indexed.sequence.get() != sequence.get() || indexed.length > accepted) indexed = {sequence};
  indexed.index.append(
      std::span(sequence->tokens).subspan(indexed.length, accepted - indexed.length));
  indexed.length = accepted;
  return indexed;
}

}  // namespace specqd
