// Verification: picks a token at each row of a proposal, up to the first that differs from it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/pick.h"
#include "model/decoder.h"

namespace specqd {

// One sample's parameters and reusable buffers. For one thread at a time.
struct Picker {
  PickParams params;
  PickScratch scratch;
};

// The state at the first row of a proposal.
struct VerifyAt {
  int64_t row;       // of the last forward's logits; the proposal's rows follow it
  int64_t position;  // of the token picked at that row
  int64_t prompt_length;
  std::span<const int32_t> history;  // tokens before `position`, then the proposal; or empty
  const uint32_t* masks;             // [proposal + 1][mask_words], or null
  int64_t mask_words;
};

// Tokens, each with the probability that its author gave it.
struct ScoredTokens {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;
};

// The prefix of a proposal that equals the model's own picks, then its next pick. Stops early at a
// row where no token is allowed.
ScoredTokens verify(const Decoder& decoder, Picker& picker, std::span<const int32_t> proposal,
                    const VerifyAt& at);

}  // namespace specqd
