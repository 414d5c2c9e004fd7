#include "decode/sequence.h"

#include <atomic>

namespace specqd {
namespace {

std::atomic<int64_t> next_key = 0;

}  // namespace

Sequence::Sequence(std::span<const int32_t> tokens, std::shared_ptr<Sampler> sampler,
                   int64_t prompt_length)
    : tokens(tokens.begin(), tokens.end()),
      sampler(std::move(sampler)),
      prompt_length(prompt_length),
      key(next_key++) {}

void Sequence::guess(std::span<const int32_t> guessed) {
  tokens.insert(tokens.end(), guessed.begin(), guessed.end());
  num_guesses += guessed.size();
}

void Sequence::forget_guesses(size_t count) {
  tokens.resize(tokens.size() - count);
  num_guesses -= count;
}

std::vector<int32_t> Sequence::history(std::span<const int32_t> proposal) const {
  if (!needs_history) return {};
  std::vector<int32_t> all(tokens.begin(), tokens.end());
  all.insert(all.end(), proposal.begin(), proposal.end());
  return all;
}

Masks Sequence::masks(std::span<const int32_t> proposal) const {
  if (grammar == nullptr) return {};
  std::vector<int32_t> guesses(tokens.end() - static_cast<std::ptrdiff_t>(num_guesses),
                               tokens.end());
  guesses.insert(guesses.end(), proposal.begin(), proposal.end());
  Masks masks = grammar->masks(guesses);
  const auto before = static_cast<std::ptrdiff_t>(num_guesses) * masks.width;
  masks.words.erase(masks.words.begin(), masks.words.begin() + before);
  return masks;
}

}  // namespace specqd
