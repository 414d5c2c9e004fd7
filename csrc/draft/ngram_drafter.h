// The drafter without a model: proposes what followed where a text read like its end does now.
//
// Knows tokens and how such proposals fared; knows no models and no text.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>

#include "draft/drafter.h"
#include "draft/ngram.h"

namespace specqd {

// Drafts from a sequence's own accepted tokens, and from a corpus that all sequences share, which
// is asked where it holds a longer match than the sequence itself. `length` fixes how many tokens
// are proposed where that many are known; without it, those that are likely enough to be worth
// their rows.
class NgramDrafter : public Drafter {
 public:
  explicit NgramDrafter(std::unique_ptr<const NgramIndex> corpus = nullptr,
                        std::optional<int64_t> length = std::nullopt)
      : corpus_(std::move(corpus)), length_(length) {}

  std::optional<int64_t> length() const { return length_; }

  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  std::vector<double> chances(const DraftRequest& request, const Proposal& proposal) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  bool is_free() const override { return true; }
  bool is_silent(const Sequence& sequence) const override;

 private:
  // Guesses and a proposal as far as it was made, and then the token that was held back.
  struct Withheld {
    std::vector<int32_t> tokens;
    double confidence;
    bool is_first;  // of its proposal
  };
  // What is indexed of a sequence: accepted tokens, which never change.
  struct Text {
    std::shared_ptr<Sequence> sequence;
    NgramIndex index{};
    size_t length = 0;
    std::optional<Withheld> withheld{};  // since the last accepted token
    double rest = 0.0;    // tokens, after a look; doubles until one of what it says is confirmed
    size_t rest_end = 0;  // no word until the text is so long
  };

  // A proposal before it is weighed, and the text that it continues: none where it has no word.
  struct Candidate {
    Proposal proposal{};
    Text* text = nullptr;
  };

  Candidate look_up(const DraftRequest& request);
  Proposal conclude(const DraftRequest& request, Candidate candidate, size_t count);
  Text& text(const std::shared_ptr<Sequence>& sequence);
  void learn(const Sequence& sequence, const Withheld& withheld, std::span<const int32_t> next);
  std::vector<size_t> should_draft(std::span<const DraftRequest> requests,
                                   std::span<const Candidate> candidate);
  std::vector<double> token_values(const DraftRequest& request, const Proposal& proposal);
  Calibration& calibration(const Sequence& sequence, bool is_first);

  std::unique_ptr<const NgramIndex> corpus_;
  std::optional<int64_t> length_;
  std::unordered_map<int64_t, Text> texts_;  // by key
  std::array<std::array<Calibration, 2>, 2> calibrations_;
};

}  // namespace specqd
