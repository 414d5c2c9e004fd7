#include "draft/choice.h"

#include <algorithm>
#include <utility>

namespace specqd {
namespace {

// Once in so many proposals it is another candidate's turn: it is asked first until it makes
// something, for which it may have to save up. One that is worth less than another would never be
// asked again, and so would never be found to have become better.
constexpr int64_t kTurn = 50;

}  // namespace

// For each request the candidate that is worth most. In a batch it may be worth more that one
// candidate proposes to all, because they share its forwards.
std::vector<DraftChoice::Best> DraftChoice::choose(std::span<const DraftRequest> requests,
                                                   std::span<const Tried> tried) {
  std::vector<Best> best(requests.size()), shared;
  double shared_s = 0.0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const std::vector<Value> values = candidates_[i].drafter->values(requests);
    std::vector<Best> alone(requests.size());
    double alone_s = 0.0;
    for (size_t j = 0; j < requests.size(); ++j) {
      if (values[j].saved_s <= 0.0 || (!tried.empty() && tried[j][i])) continue;
      alone[j] = {i, values[j]};
      alone_s += values[j].saved_s;
      if (values[j].saved_s > best[j].value.saved_s) best[j] = alone[j];
    }
    if (alone_s <= shared_s) continue;
    shared_s = alone_s;
    shared = std::move(alone);
  }
  const bool is_batch = requests.size() > 1;
  return is_batch && shared_s > saved_by_groups(requests, best) ? shared : best;
}

// Seconds that the candidates save, each with only the requests for which it is the best.
double DraftChoice::saved_by_groups(std::span<const DraftRequest> requests,
                                    std::span<const Best> best) {
  double saved_s = 0.0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    std::vector<DraftRequest> group;
    for (size_t j = 0; j < requests.size(); ++j)
      if (best[j].candidate == i && best[j].value.saved_s > 0.0) group.push_back(requests[j]);
    if (group.empty()) continue;
    for (const Value& value : candidates_[i].drafter->values(group)) saved_s += value.saved_s;
  }
  return saved_s;
}

std::vector<Value> DraftChoice::values(std::span<const DraftRequest> requests) {
  std::vector<Value> values;
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
  if (++proposals_ % kTurn == 0)
    whose_turn_ = static_cast<size_t>(proposals_ / kTurn) % candidates_.size();
  bool is_first = true;
  return propose_in_rounds(std::move(drafts), [&](std::span<Draft* const> going) {
    std::vector<Draft*> left(going.begin(), going.end());
    if (std::exchange(is_first, false) && whose_turn_) {
      extend(left, *whose_turn_);
      if (std::erase_if(left, [](const Draft* draft) { return draft->count() > 0; }) > 0)
        whose_turn_.reset();
    }
    std::vector<Tried> tried(left.size(), Tried(candidates_.size()));
    while (!left.empty()) extend_once(left, tried);
  });
}

// Lets the best candidate extend each of the drafts. Keeps those for which it made nothing, for
// example because it has a prompt to read first, so that others are asked.
void DraftChoice::extend_once(std::vector<Draft*>& drafts, std::vector<Tried>& tried) {
  const std::vector<Best> best = choose(rests_of(drafts), tried);
  std::vector<std::vector<Draft*>> chosen(candidates_.size());
  for (size_t j = 0; j < drafts.size(); ++j) {
    const bool may_probe = drafts[j]->count() == 0 && std::ranges::count(tried[j], true) == 0;
    if (best[j].value.saved_s > 0.0 || may_probe) chosen[best[j].candidate].push_back(drafts[j]);
  }
  std::vector<int64_t> before;
  for (const Draft* draft : drafts) before.push_back(draft->count());
  for (size_t i = 0; i < candidates_.size(); ++i)
    if (!chosen[i].empty()) extend(chosen[i], i);
  std::vector<Draft*> unextended;
  std::vector<Tried> tried_now;
  for (size_t j = 0; j < drafts.size(); ++j) {
    if (best[j].value.saved_s <= 0.0 || drafts[j]->count() > before[j]) continue;
    tried[j][best[j].candidate] = true;
    unextended.push_back(drafts[j]);
    tried_now.push_back(std::move(tried[j]));
  }
  drafts = std::move(unextended);
  tried = std::move(tried_now);
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

void DraftChoice::follow(std::span<const std::shared_ptr<Sequence>> sequences) {
  for (const Candidate& candidate : candidates_) candidate.drafter->follow(sequences);
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
