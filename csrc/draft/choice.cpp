#include "draft/choice.h"

#include <utility>

namespace specqd {

std::vector<DraftChoice::Best> DraftChoice::choose(std::span<const DraftRequest> requests) {
  std::vector<Best> best(requests.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const std::vector<double> values = candidates_[i].drafter->values(requests);
    for (size_t j = 0; j < requests.size(); ++j)
      if (i == 0 || values[j] > best[j].value) best[j] = {i, values[j]};
  }
  return best;
}

std::vector<double> DraftChoice::values(std::span<const DraftRequest> requests) {
  std::vector<double> values;
  values.reserve(requests.size());
  for (const Best& best : choose(requests)) values.push_back(best.value);
  return values;
}

std::vector<Proposal> DraftChoice::propose(std::span<const DraftRequest> requests) {
  const std::vector<Best> best = choose(requests);
  std::vector<Proposal> proposals(requests.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    std::vector<DraftRequest> chosen;
    std::vector<size_t> places;
    for (size_t j = 0; j < requests.size(); ++j)
      if (best[j].candidate == i) {
        chosen.push_back(requests[j]);
        places.push_back(j);
      }
    if (chosen.empty()) continue;
    std::vector<Proposal> made = candidates_[i].drafter->propose(chosen);
    for (size_t j = 0; j < places.size(); ++j) {
      Proposal& proposal = proposals[places[j]] = std::move(made[j]);
      proposal.candidate = i;
      proposal.depths.resize(proposal.tokens.size(), 0);
      for (int32_t& depth : proposal.depths) depth += candidates_[i].depth;
    }
  }
  return proposals;
}

void DraftChoice::observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) {
  candidates_[proposal.candidate].drafter->observe(request, proposal, accepted);
}

void DraftChoice::release(const std::shared_ptr<Sequence>& sequence) {
  for (const Candidate& candidate : candidates_) candidate.drafter->release(sequence);
}

void DraftChoice::measure() {
  for (const Candidate& candidate : candidates_) candidate.drafter->measure();
}

}  // namespace specqd
