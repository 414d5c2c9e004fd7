// One text being written: its tokens so far, and how its next one is picked. Knows no models.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "decode/verify.h"

namespace specqd {

// Bit masks, a row for each token of a proposal and one more: row i allows what may follow the
// accepted tokens and the proposal's first i. Empty: everything may.
struct Masks {
  std::vector<uint32_t> words;
  int64_t width = 0;  // words of a row
};

// Which tokens may follow.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // A proposal that breaks the rules is cut by its own row; the rows after that may allow anything.
  virtual Masks masks(std::span<const int32_t> proposal) = 0;
};

// A distinct type, so that Python sees the sequence's own tokens and not a copy.
struct Tokens : std::vector<int32_t> {
  using std::vector<int32_t>::vector;
};

// The tokens of one request's sample. While a level drafts, its guesses stand at the end.
struct Sequence {
  Sequence(std::span<const int32_t> tokens, std::shared_ptr<Picker> picker, int64_t prompt_length);

  Tokens tokens;
  std::shared_ptr<Picker> picker;
  int64_t prompt_length;
  bool is_sampled = false;     // with noise: temperature > 0
  bool needs_history = false;  // penalties look at all tokens
  std::shared_ptr<Grammar> grammar;
  std::set<int32_t> stop_ids;
  uint64_t cache_salt = 0;  // keys and values are shared with sequences of the same one
  int64_t key;              // of no other sequence
  size_t num_guesses = 0;

  // Of the tokens, those that the outermost level confirmed: they stay.
  size_t num_accepted() const { return tokens.size() - num_guesses; }
  bool is_stop(int32_t token) const { return stop_ids.contains(token); }

  void guess(std::span<const int32_t> guessed);
  void forget_guesses(size_t count);  // takes the last ones back

  // Tokens so far and then the proposal, where picking needs them.
  std::vector<int32_t> history(std::span<const int32_t> proposal) const;
  // What the grammar allows after each of the proposal's tokens, and before the first.
  Masks masks(std::span<const int32_t> proposal) const;
};

}  // namespace specqd
