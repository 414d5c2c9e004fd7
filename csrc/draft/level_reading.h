// Tracks the tokens that a level still has to read, and decides which of them it reads next.
//
// Knows the contexts of a model and what its forwards cost; runs no forwards.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/forward.h"
#include "draft/draft.h"
#include "draft/level_costs.h"

namespace specqd {

class LevelReading {
 public:
  LevelReading(LevelModel& model, const LevelCosts& costs) : model_(model), costs_(costs) {}

  // The first token that a forward of the sequence reads: the last one, or one before it.
  int64_t start_of(const Sequence& sequence, Context& context) const;
  // The tokens before the last one that the cache does not hold.
  int64_t num_unread(const std::shared_ptr<Sequence>& sequence) const;
  // Those that the level, as a drafter, must read first.
  int64_t lag(const Sequence& sequence, Context& context) const;
  // The tokens from `position` on that a forward reads in so many seconds; at least 16, and at most
  // the model's rows.
  int64_t tokens_within(double seconds, int64_t position) const;
  // Lets a drafter read prompts in parts.
  void limit(std::span<DraftRequest> requests) const;

 private:
  LevelModel& model_;
  const LevelCosts& costs_;
};

// Drops the drafts of sequences that wait. If several sequences begin with the same page and have
// read nothing, one of them reads its prompt; the others wait until they can adopt its pages.
void drop_waiting(std::vector<Draft*>& drafts);

}  // namespace specqd
