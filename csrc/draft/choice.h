// Drafters side by side: each sequence gets the proposal that is worth most.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "draft/drafter.h"

namespace specqd {

class DraftChoice : public Drafter {
 public:
  struct Candidate {
    Drafter* drafter;
    int32_t depth;  // members of the choice that the chain lists before it
  };

  explicit DraftChoice(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}

  // Of equal values the first candidate's counts, which may then probe.
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
  std::vector<Best> choose(std::span<const DraftRequest> requests);

  std::vector<Candidate> candidates_;
};

}  // namespace specqd
