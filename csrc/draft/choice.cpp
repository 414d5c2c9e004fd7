#include "draft/choice.h"

#include <algorithm>
#include <utility>

namespace specqd {

std::vector<DraftChoice::Best> DraftChoice::choose(std::span<const DraftRequest> requests) {
  std::vector<Best> best(requests.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const std::vector<double> values = candidates_[i].drafter->values(requests);
    for (size_t j = 0; j < requests.size(); ++j)
      if (values[j] > best[j].value) best[j] = {i, values[j]};
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
  std::vector<Draft> drafts;
  drafts.reserve(requests.size());
  for (const DraftRequest& request : requests) {
    drafts.emplace_back(request, std::min(request.at_most, kLongestProposal));
    parts_[request.sequence->key].clear();
  }
  return propose_in_rounds(std::move(drafts), [this](std::span<Draft* const> going) {
    const std::vector<Best> best = choose(rests_of(going));
    std::vector<std::vector<Draft*>> chosen(candidates_.size());
    for (size_t j = 0; j < going.size(); ++j)
      if (best[j].value > 0.0 || going[j]->count() == 0)
        chosen[best[j].candidate].push_back(going[j]);
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (!chosen[i].empty()) extend(chosen[i], i);
  });
}

// Adds what a candidate proposes to each of the drafts; they are done where that is nothing.
void DraftChoice::extend(std::span<Draft* const> drafts, size_t candidate) {
  const auto& [drafter, depth] = candidates_[candidate];
  const std::vector<DraftRequest> rests = rests_of(drafts);
  std::vector<Proposal> steps = drafter->propose(rests);
  for (size_t i = 0; i < drafts.size(); ++i) {
    const auto start = static_cast<size_t>(drafts[i]->count());
    if (!steps[i].is_empty())
      parts_[rests[i].sequence->key].push_back({candidate, start, rests[i], steps[i]});
    steps[i].depths.resize(steps[i].tokens.size());
    for (int32_t& each : steps[i].depths) each += depth;
    drafts[i]->add(std::move(steps[i]));
  }
}

void DraftChoice::observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) {
  for (Part& part : parts_[request.sequence->key]) {
    if (part.start > accepted || part.start >= proposal.tokens.size()) break;
    part.proposal.cut(proposal.tokens.size() - part.start);  // the verifier may have cut it
    candidates_[part.candidate].drafter->observe(
        part.request, part.proposal, std::min(accepted - part.start, part.proposal.tokens.size()));
  }
}

void DraftChoice::release(const std::shared_ptr<Sequence>& sequence) {
  parts_.erase(sequence->key);
  for (const Candidate& candidate : candidates_) candidate.drafter->release(sequence);
}

void DraftChoice::measure() {
  for (const Candidate& candidate : candidates_) candidate.drafter->measure();
}

}  // namespace specqd
