// Drafters side by side. At each place of a proposal the one that is worth most there goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "draft/draft.h"
#include "draft/drafter.h"

namespace specqd {

// A proposal may so begin with what one drafter makes and go on with what another makes after it.
class DraftChoice : public Drafter {
 public:
  struct Candidate {
    Drafter* drafter;
    int32_t depth;  // members of the choice that the chain lists before it
  };

  explicit DraftChoice(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}

  // Where no candidate is worth anything at the first place, the first one is asked all the same:
  // it may probe.
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
  // One candidate's share of a sequence's last proposal.
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
