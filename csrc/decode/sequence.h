// One sequence: its tokens so far, and how its next token is picked. Knows no models.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "decode/sampling.h"

namespace specqd {

// One sample's parameters and reusable buffers. For one thread at a time.
struct Sampler {
  SamplerParams params;
  SamplerScratch scratch;
};

// Tokens, each with the probability that its author gave it.
struct ScoredTokens {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;
};

// Bit masks, one row more than the proposal has tokens: row i allows the tokens that may follow the
// accepted tokens and the proposal's first i tokens. Empty: all tokens are allowed.
struct Masks {
  std::vector<uint32_t> words;
  int64_t width = 0;  // words per row
};

// Decides which tokens may follow.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // If a token of the proposal breaks the rules, its own row forbids it; later rows may allow
  // anything.
  virtual Masks masks(std::span<const int32_t> proposal) = 0;
};

// A distinct type, so that Python sees the sequence's own tokens instead of a copy.
struct Tokens : std::vector<int32_t> {
  using std::vector<int32_t>::vector;
};

// The tokens of one request's sample. While a level drafts, its guesses are at the end.
struct Sequence {
  Sequence(std::span<const int32_t> tokens, std::shared_ptr<Sampler> sampler,
           int64_t prompt_length);

  Tokens tokens;
  std::shared_ptr<Sampler> sampler;
  int64_t prompt_length;
  bool is_sampled = false;     // with noise: temperature > 0
  bool needs_history = false;  // penalties depend on all tokens
  std::shared_ptr<Grammar> grammar;
  std::set<int32_t> stop_ids;
  uint64_t cache_salt = 0;  // only sequences with equal salts share keys and values
  int64_t key;              // unique
  size_t num_guesses = 0;

  // The number of tokens that the outermost level confirmed. They never change.
  size_t num_accepted() const { return tokens.size() - num_guesses; }
  bool is_stop(int32_t token) const { return stop_ids.contains(token); }

  void guess(std::span<const int32_t> guessed);
  void forget_guesses(size_t count);  // removes the last `count` guesses

  // The tokens so far and the proposal; empty unless picking needs them.
  std::vector<int32_t> history(std::span<const int32_t> proposal) const;
  // The tokens that the grammar allows before the proposal's first token and after each one.
  Masks masks(std::span<const int32_t> proposal) const;
};

}  // namespace specqd
