#include "decode/sequence.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace specqd {
namespace {

std::atomic<int64_t> next_key = 0;

}  // namespace

Masks Masks::widened(int64_t rows, int64_t least) const {
  if (width > 0 && std::ssize(words) != rows * width)
    throw std::invalid_argument("masks must be [proposal + 1, words of a row]");
  if (width == 0 || width >= least) return *this;
  Masks wide{std::vector<uint32_t>(static_cast<size_t>(rows * least)), least};
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(words.begin() + row * width, width, wide.words.begin() + row * least);
  return wide;
}

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
