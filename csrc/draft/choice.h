// A choice between drafters. At each place of a proposal, the drafter whose tokens are worth most
// continues it.
#pragma once

#include <cstdint>
#include <memory>
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
  // may probe.
  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override;
  std::vector<double> values(std::span<const DraftRequest> requests) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  void measure() override;

 private:
  struct Best {
    size_t candidate = 0;
    double value = 0.0;
  };
  // The part of a sequence's last proposal that one candidate made.
  struct Part {
    size_t candidate, start;
    DraftRequest request;
    Proposal proposal;
  };
  std::vector<Best> choose(std::span<const DraftRequest> requests);
  void extend(std::span<Draft* const> drafts, size_t candidate);

  std::vector<Candidate> candidates_;
  std::unordered_map<int64_t, std::vector<Part>> parts_;  // by sequence
};

}  // namespace specqd
