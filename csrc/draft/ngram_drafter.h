// The drafter without a model: proposes what followed where the sequence read like its end does
// now.
//
// Knows tokens and how its proposals fared; knows no models and no text.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>

#include "draft/acceptance.h"
#include "draft/drafter.h"
#include "draft/ngram.h"

namespace specqd {

// Drafts from a sequence's own accepted tokens, and from a corpus that all sequences share. The
// corpus is used where it holds a longer match than the sequence. `length` fixes how many tokens
// are proposed where that many are known; without it, those that are worth their rows.
class NgramDrafter : public Drafter {
 public:
  explicit NgramDrafter(std::unique_ptr<const NgramIndex> corpus = nullptr,
                        std::optional<int64_t> length = std::nullopt)
      : corpus_(std::move(corpus)), length_(length) {}

  std::optional<int64_t> length() const { return length_; }

  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override;
  std::vector<double> values(std::span<const DraftRequest> requests) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;

 private:
  // The first token that was not proposed, after the tokens before it since the last accepted one.
  struct Withheld {
    std::vector<int32_t> tokens;
    size_t start;  // tokens of the sequence, guesses included, when it was looked up
    double confidence;
    bool is_first;  // of its proposal
  };
  // The result of a look-up. A choice asks for the value of a proposal and then for the proposal.
  struct Found {
    std::vector<int32_t> guesses;
    int64_t at_most;
    Proposal proposal;
  };
  // The index of a sequence's accepted tokens, which never change.
  struct Indexed {
    std::shared_ptr<Sequence> sequence;
    NgramIndex index{};
    size_t length = 0;
    std::optional<Withheld> withheld{};  // since the last accepted token
    std::optional<Found> found{};        // since then
  };
  // A proposal before it is weighed. Where it has no tokens, `indexed` may be null.
  struct Candidate {
    Proposal proposal{};
    Indexed* indexed = nullptr;
    size_t count = 0;    // of its tokens, those that are worth their rows
    double value = 0.0;  // seconds that they save, net of their rows
  };

  // Looks every sequence up, and weighs what it finds for all of them together.
  std::vector<Candidate> weigh(std::span<const DraftRequest> requests);
  Candidate look_up(const DraftRequest& request);
  void choose_counts(std::span<const DraftRequest> requests, std::span<Candidate> candidates);
  std::vector<double> token_values(const DraftRequest& request, const Proposal& proposal);
  void withhold(const Sequence& sequence, const Candidate& candidate, size_t count);
  Indexed& indexed(const std::shared_ptr<Sequence>& sequence);
  void learn(const Sequence& sequence, const Withheld& withheld, std::span<const int32_t> next);
  Calibration& calibration(const Sequence& sequence, bool is_first);

  std::unique_ptr<const NgramIndex> corpus_;
  std::optional<int64_t> length_;
  std::unordered_map<int64_t, Indexed> indexed_;  // by key
  ByTemperature<std::array<Calibration, 2>> calibrations_;
};

}  // namespace specqd
