// A choice between drafters. At each place of a proposal, the drafter whose tokens are worth most
// continues it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "draft/draft.h"
#include "draft/drafter.h"

namespace specqd {

// A proposal may begin with the tokens of one drafter and continue with those of another.
class DraftChoice : public Drafter {
 public:
  struct Candidate {
    Drafter* drafter;
    int32_t depth;  // members of the choice that the chain lists before it
  };

  explicit DraftChoice(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}

  // If no candidate is worth anything at the first place, the first candidate is asked, because it
  // may probe. Each candidate has a turn from time to time, in which it is asked before the best.
  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override;
  std::vector<Value> values(std::span<const DraftRequest> requests) override;
  void follow(std::span<const std::shared_ptr<Sequence>> sequences) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  void measure() override;

 private:
  struct Best {
    size_t candidate = 0;
    Value value{};
  };
  // The part of a sequence's last proposal that one candidate made.
  struct Part {
    size_t candidate, start;
    DraftRequest request;
    Proposal proposal;
  };
  using Tried = std::vector<bool>;  // by candidate: it was asked in this round, and made nothing
  std::vector<Best> choose(std::span<const DraftRequest> requests,
                           std::span<const Tried> tried = {});
  double saved_by_groups(std::span<const DraftRequest> requests, std::span<const Best> best);
  void extend_once(std::vector<Draft*>& drafts, std::vector<Tried>& tried);
  void extend(std::span<Draft* const> drafts, size_t candidate);

  std::vector<Candidate> candidates_;
  int64_t proposals_ = 0;
  std::optional<size_t> whose_turn_;  // the candidate that is asked before the best one
  std::unordered_map<int64_t, std::vector<Part>> parts_;  // by sequence
};

}  // namespace specqd
