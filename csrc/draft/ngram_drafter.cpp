#include "draft/ngram_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "draft/joint_cut.h"

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

NgramDrafter::Weighed NgramDrafter::weigh(const DraftRequest& request) {
  Weighed found{look_up(request)};
  std::vector<double> chances;
  for (const double stated : found.proposal.confidences)
    chances.push_back(calibration_.probability(stated));
  const bool takes_all = length_ || request.token_value_s == kAlwaysDraft;
  found.value = cut_jointly(request, chances, takes_all, found.proposal);
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
