#include "decode/verify.h"

namespace specqd {

ScoredTokens verify(const Decoder& decoder, Picker& picker, std::span<const int32_t> proposal,
                    const VerifyAt& at) {
  ScoredTokens verified;
  const size_t before = at.history.empty() ? 0 : at.history.size() - proposal.size();
  for (size_t i = 0; i <= proposal.size(); ++i) {
    const auto history = at.history.empty() ? at.history : at.history.first(before + i);
    const auto offset = static_cast<int64_t>(i);
    const uint32_t* mask = at.masks == nullptr ? nullptr : at.masks + offset * at.mask_words;
    const Picked picked =
        pick(decoder.kernels(), picker.params, decoder.logits(at.row + offset),
             at.position + offset, history, at.prompt_length, mask, picker.scratch);
    if (picked.token < 0) break;
    verified.tokens.push_back(picked.token);
    verified.probabilities.push_back(picked.probability);
    if (i < proposal.size() && picked.token != proposal[i]) break;
  }
  decoder.tell_picked(verified.tokens);
  return verified;
}

}  // namespace specqd
