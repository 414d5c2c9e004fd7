#include "draft/policy.h"

#include <algorithm>
#include <cmath>

namespace specqd {
namespace {

// The first row of a verification may cost more than the next: then a token pays only with others.
constexpr int64_t kTokensAhead = 2;

}  // namespace

void DraftPolicy::pass(std::span<const DraftRequest> requests) {
  // A probe teaches from every sequence of a batch, so the batch waits longer for the next.
  for (const DraftRequest& request : requests)
    if (request.is_first())  // a proposal's later parts belong to the same round
      probes_.pass(request.token_value_s / static_cast<double>(request.sharing));
}

// Charges a round's seconds, and those that its tokens add to verification, if it was a probe.
void DraftPolicy::charge(std::span<Draft* const> drafts, size_t tokens, double seconds) {
  const double each = static_cast<double>(tokens) / static_cast<double>(drafts.size());
  bool is_probe = false;
  for (const Draft* draft : drafts) {
    if (draft->proposal.probe_from == Proposal::kNever) continue;
    is_probe = true;
    const auto count = static_cast<double>(draft->count());
    seconds += draft->request.added_seconds(count) - draft->request.added_seconds(count - each);
  }
  if (is_probe) probes_.charge(seconds);
}

std::vector<Draft*> DraftPolicy::select(std::span<const Priced> drafts) {
  std::vector<Draft*> going;
  double value = 0.0;  // at the forward's share in a round of all
  for (const Priced& each : drafts) {
    if (each.draft->request.token_value_s == kAlwaysDraft) {
      going.clear();
      for (const Priced& all : drafts) going.push_back(all.draft);
      return going;
    }
    const double saved = value_of_rest(each, kTokensAhead).saved_s;
    if (saved <= 0.0) continue;
    going.push_back(each.draft);
    value += saved;
  }
  const auto count = static_cast<double>(going.size());
  const auto dearer = [&] { return forward_share(going.size()) - forward_share(drafts.size()); };
  if (!going.empty() && value > count * dearer()) return going;
  return probes_among(drafts);
}

// The drafts for which the budget pays what they must make up for.
std::vector<Draft*> DraftPolicy::probes_among(std::span<const Priced> drafts) {
  std::vector<Draft*> probes;
  if (!probes_.is_open()) return probes;
  double catch_up_s = 0.0;
  for (const Priced& each : drafts) {
    if (!probes_.allows(catch_up_s + each.catch_up_s)) continue;
    catch_up_s += each.catch_up_s;
    each.draft->proposal.probe_from =
        std::min(each.draft->proposal.probe_from, each.draft->count());
    probes.push_back(each.draft);
  }
  return probes;
}

Value DraftPolicy::value_of_rest(const Priced& priced, int64_t ahead) const {
  const Draft& draft = *priced.draft;
  const DraftRequest& request = draft.request;
  const double follows = acceptance.next.probability(draft.confidence);
  const double token_s = priced.token_s + priced.catch_up_s / priced.catch_up_by;
  const int64_t start = draft.count(), end = std::min(draft.longest, start + ahead);
  double reached = draft.proposal.reached, saved = 0.0, tokens = 0.0;
  Value best;
  for (int64_t at = start; at < end; ++at) {
    reached *= follows;
    const auto before = static_cast<double>(at);
    tokens += reached;
    saved += reached * request.token_value_s - token_s -
             (request.added_seconds(before + 1.0) - request.added_seconds(before));
    if (saved > best.saved_s) best = {saved, tokens};
  }
  return best;
}

double DraftPolicy::forward_share(size_t count) const {
  const auto sequences = static_cast<double>(count);
  return costs_.of(count)->seconds(sequences) / sequences;
}

}  // namespace specqd
