// The drafter without a model: proposes what followed where the sequence read like its end does
// now.
//
// Knows tokens and how its proposals fared; knows no models and no text.
#pragma once

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
  std::vector<Value> values(std::span<const DraftRequest> requests) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;

 private:
  // The index of a sequence's accepted tokens, which never change.
  struct Indexed {
    std::shared_ptr<Sequence> sequence;
    NgramIndex index{};
    size_t length = 0;
  };
  struct Weighed {
    Proposal proposal{};
    Value value{};
  };

  // Looks the sequence up, and cuts what follows to the number of tokens that saves most.
  Weighed weigh(const DraftRequest& request);
  Proposal look_up(const DraftRequest& request);
  Indexed& indexed(const std::shared_ptr<Sequence>& sequence);

  std::unique_ptr<const NgramIndex> corpus_;
  std::optional<int64_t> length_;
  std::unordered_map<int64_t, Indexed> indexed_;  // by key
  // Bins of high confidence are narrow, because long proposals depend on them.
  // Rejected uncertain tokens say little about certain ones.
  Calibration calibration_{0.0, {0.5, 0.75, 0.88, 0.94, 0.97, 0.985, 0.992}, false};
};

}  // namespace specqd
