#include "draft/joint_cut.h"

#include <algorithm>

namespace specqd {

Value cut_jointly(const DraftRequest& request, std::span<const double> chances, bool keeps_all,
                  Proposal& proposal) {
  const double plain_s = request.verification_seconds(0.0);
  const double before = static_cast<double>(request.rows) / static_cast<double>(request.sharing);
  const bool is_priced = request.token_value_s < kAlwaysDraft;
  double reached = 1.0, accepted = 0.0, saved = 0.0;
  size_t best = 0;
  Value value;
  for (size_t count = 1; count <= proposal.tokens.size(); ++count) {
    reached *= chances[count - 1];
    accepted += reached;
    const double round_s = request.verification_seconds(static_cast<double>(count));
    const double per_token_s = round_s > 0.0 ? round_s / (before + accepted) : kAlwaysDraft;
    saved += reached * std::min(request.token_value_s, per_token_s);
    const double net = saved - (round_s - plain_s);
    if (!keeps_all && net <= value.saved_s) continue;
    value = {is_priced ? std::max(net, 0.0) : 0.0, accepted};
    proposal.reached = reached;
    best = count;
  }
  proposal.cut(best);
  return value;
}

}  // namespace specqd
