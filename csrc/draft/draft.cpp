#include "draft/draft.h"

#include <algorithm>
#include <utility>

namespace specqd {
namespace {

// Takes the guesses of drafts back from their sequences when it goes out of scope.
class Guesses {
 public:
  explicit Guesses(std::span<Draft> drafts) : drafts_(drafts) {}
  ~Guesses() {
    for (Draft& draft : drafts_)
      draft.request.sequence->forget_guesses(draft.proposal.tokens.size());
  }
  Guesses(const Guesses&) = delete;
  Guesses& operator=(const Guesses&) = delete;

 private:
  std::span<Draft> drafts_;
};

}  // namespace

DraftRequest Draft::rest() const {
  DraftRequest left = request;
  left.at_most = longest - count();
  left.token_value_s = proposal.reached * request.token_value_s;
  left.confidence = confidence;
  left.rows = request.rows + request.sharing * count();
  return left;
}

void Draft::add(Proposal step) {
  is_done = step.is_empty();
  if (is_done) return;
  const auto stop = std::find_if(step.tokens.begin(), step.tokens.end(), [this](int32_t token) {
    return request.sequence->is_stop(token);
  });
  if (stop != step.tokens.end()) {
    step.cut(static_cast<size_t>(stop - step.tokens.begin()) + 1);
    is_done = true;
  }
  confidence = step.confidences.back();
  proposal.append(step);
  request.sequence->guess(step.tokens);
}

std::vector<DraftRequest> rests_of(std::span<Draft* const> drafts) {
  std::vector<DraftRequest> rests;
  rests.reserve(drafts.size());
  for (const Draft* draft : drafts) rests.push_back(draft->rest());
  return rests;
}

std::vector<Proposal> propose_in_rounds(std::vector<Draft> drafts, const DraftRound& round) {
  {
    const Guesses guesses(drafts);
    while (true) {
      std::vector<Draft*> going;
      for (Draft& draft : drafts) {
        if (draft.is_done || draft.count() >= draft.longest) continue;
        draft.is_done = true;  // unless this round adds to it
        going.push_back(&draft);
      }
      if (going.empty()) break;
      round(going);
    }
  }
  std::vector<Proposal> proposals;
  proposals.reserve(drafts.size());
  for (Draft& draft : drafts) proposals.push_back(std::move(draft.proposal));
  return proposals;
}

}  // namespace specqd
