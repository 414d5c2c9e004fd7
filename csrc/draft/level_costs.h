// What the forwards of a level take: by rows, for parts of prompts, and for each token made.
//
// Bookkeeping over seconds that the level measures; knows no models, tokens or clocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "draft/costs.h"

namespace specqd {

class LevelCosts {
 public:
  BatchCosts forwards;  // sampling from their logits included

  void begin(const MeasuredCosts& measured);
  // Learns from a forward of a prompt's rows, with so many positions before them, summed over rows.
  void add_reading(int64_t rows, double positions, double seconds);
  // Learns from a forward of drafts that made `tokens`, and first read `lag` that it had missed.
  void add_draft(int64_t lag, size_t tokens) {
    lags_.add(static_cast<double>(tokens), static_cast<double>(lag));
  }
  void end_text() { lags_.fade(); }  // another text may be drafted in another way
  // Learns from a round of `count` sequences in which nobody read a prompt, drafting included.
  void add_round(size_t count, size_t tokens, double seconds);

  // Tokens from a position on that a forward reads in so many seconds; none if nothing is known.
  std::optional<int64_t> tokens_within(double seconds, int64_t position) const;
  // Seconds to read the last `lag` of a sequence's `length` tokens, in a batch of `count`. A short
  // lag adds rows to a forward; a long one takes forwards of its own.
  double catch_up_seconds(int64_t lag, int64_t length, size_t count);
  // Missed tokens that the level lately read for each that it drafted: more than one if it takes
  // turns with other drafters, next to none if it drafts alone.
  double lag_per_token() const { return lags_.seconds_per_token().value_or(0.0); }
  // Seconds that a token takes in a batch of `count` sequences, and so the value of one more. It is
  // never more than plain decoding takes: drafts that lose time must not raise the value. Without
  // measurements, kAlwaysDraft.
  double seconds_per_token(size_t count);

 private:
  ReadingCosts reading_;
  std::map<size_t, TokenRate> rates_;  // by the size of the batch
  TokenRate lags_;                     // its "seconds" are missed tokens that were read
};

}  // namespace specqd
