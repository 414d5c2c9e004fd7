// An index of grams: tokens that followed the same tokens earlier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decode/sequence.h"

namespace specqd {

inline constexpr int kLongestMatch = 32;  // tokens before a place that are compared
inline constexpr int kMostPlaces = 8;     // that a prediction compares
inline constexpr std::array<int, 4> kGramLengths{1, 2, 4, 8};

// Where a proposal ends.
struct Limits {
  size_t tokens;        // at most
  double likely = 0.0;  // stated chance that all are accepted, below which no token follows
};

// Places of grams in a growing sequence. A place is the position of a gram's last token. It is
// indexed once the next token is known, so every place has a continuation.
//
// A hash table has the latest place of each gram, and a chain leads from each place to the one
// before it of the same gram. Appending is O(1) amortised, a query is O(1).
// Memory: at most 4 + 4 * (4 + 32/3) < 64 bytes a token, and what vectors reserve to grow.
class NgramIndex {
 public:
  NgramIndex() = default;

  // Sequences follow one another; no match and no continuation crosses the end of one.
  void append(std::span<const int32_t> tokens);
  void end_text();

  size_t size() const { return tokens_.size(); }  // tokens, and one for each end
  size_t bytes() const;                           // reserved

  // Predicts tokens after this sequence and `guesses`, which are not indexed.
  //
  // The places are the latest ones of the sequence's last eight tokens, then of its last four, two
  // and one, until there are eight. The one with the longest match leads, the latest of equals, and
  // its continuation is proposed, which runs on into the guesses and the proposal itself: a
  // repeating sequence is continued without end. Each token's confidence is the weight of those
  // that agree on it, among all that agreed so far and two tokens' worth of doubt; a place weighs
  // its match's length to the power 1.5. That fits how often such matches held on code and on
  // prose, at temperatures of 0 and 0.8.
  //
  // Where the corpus has a longer match than this sequence, it alone is used.
  ScoredTokens propose(std::span<const int32_t> guesses, Limits limits,
                       const NgramIndex* corpus = nullptr) const;

 private:
  struct Place {
    int32_t position;
    int match;  // tokens up to the position that equal the end of the sequence
  };
  struct Places {
    std::array<Place, kMostPlaces> all;
    int count = 0;
  };
  // The end of a sequence, the last token first.
  struct Ending {
    std::array<int32_t, kLongestMatch> tokens;
    int length = 0;

    std::span<const int32_t> all() const { return last(length); }
    std::span<const int32_t> last(int count) const {
      return std::span(tokens).first(static_cast<size_t>(count));
    }
  };

  // The latest place of each gram of one length.
  struct Table {
    std::vector<int32_t> latest;  // open addressing by the gram's hash; -1: empty
    size_t grams = 0;
  };

  void index_place(int32_t position);
  void grow(Table& table, int length);
  size_t slot(const Table& table, uint64_t hash, std::span<const int32_t> gram) const;
  Ending ending_at(int32_t position, int length) const;
  Ending ending_with(std::span<const int32_t> guesses) const;
  int match(int32_t position, const Ending& ending) const;
  Places places(const Ending& ending) const;
  ScoredTokens follow(Places places, std::vector<int32_t> after, Limits limits) const;

  std::vector<int32_t> tokens_;  // -1: the end of a sequence
  size_t text_length_ = 0;       // tokens since the last end
  std::array<Table, kGramLengths.size()> tables_;
  // The place before each of the same gram, by position and length; -1: none.
  std::vector<std::array<int32_t, kGramLengths.size()>> previous_;
};

}  // namespace specqd
