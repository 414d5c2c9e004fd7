// One sequence: its tokens so far, and how its next token is sampled. Knows no models.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "decode/sampling.h"

namespace specqd {

// The parameters and the reusable buffers of one sequence. One thread at a time may use them.
struct Sampler {
  SamplerParams params;
  SamplerScratch scratch;
};

// Tokens, each with the probability that the model which sampled it gave to it.
struct ScoredTokens {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;
};

// Bit masks [proposal + 1][width]. Row i allows the tokens that may follow the accepted tokens and
// the first i tokens of the proposal. Without rows, all tokens are allowed.
struct Masks {
  std::vector<uint32_t> words;
  int64_t width = 0;  // words per row

  // The same with at least `least` words in each of `rows` rows: a model may have more tokens than
  // the one for which the masks were made, and these are not allowed. Throws std::invalid_argument
  // if there are other rows.
  Masks widened(int64_t rows, int64_t least) const;
};

// Decides which tokens may follow.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // If the grammar does not allow a token of the proposal, the row before that token forbids it,
  // and later rows are unspecified.
  virtual Masks masks(std::span<const int32_t> proposal) = 0;
};

// A type of its own, so that Python sees the sequence's tokens themselves instead of a copy.
struct Tokens : std::vector<int32_t> {
  using std::vector<int32_t>::vector;
};

// The tokens of one of the n samples of a request. While a level drafts, its guesses are at the
// end.
struct Sequence {
  Sequence(std::span<const int32_t> tokens, std::shared_ptr<Sampler> sampler,
           int64_t prompt_length);

  Tokens tokens;
  std::shared_ptr<Sampler> sampler;
  int64_t prompt_length;
  bool is_sampled = false;     // with noise, at a temperature > 0
  bool needs_history = false;  // whether penalties depend on all earlier tokens
  std::shared_ptr<Grammar> grammar;
  std::set<int32_t> stop_ids;
  uint64_t cache_salt = 0;      // only sequences with equal salts share keys and values
  bool reuses_prefixes = true;  // may begin with pages that others have published
  bool is_preempted = false;    // if it is released, it will begin again
  int64_t key;                  // unique
  size_t num_guesses = 0;

  // The number of tokens that the outermost level has accepted. They never change.
  size_t num_accepted() const { return tokens.size() - num_guesses; }
  std::span<const int32_t> accepted() const { return std::span(tokens).first(num_accepted()); }
  bool is_stop(int32_t token) const { return stop_ids.contains(token); }

  void guess(std::span<const int32_t> guessed);
  void forget_guesses(size_t count);  // removes the last `count` guesses

  // The tokens so far and those of the proposal; empty unless sampling needs them.
  std::vector<int32_t> history(std::span<const int32_t> proposal) const;
  // The tokens that the grammar allows as the first token of the proposal and after each of its
  // tokens.
  Masks masks(std::span<const int32_t> proposal) const;
};

}  // namespace specqd
