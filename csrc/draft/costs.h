// Costs of drafting: seconds of forwards by their rows, the rate of tokens, a budget for probes.
//
// Bookkeeping over numbers that others measure; knows no models, tokens or clocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace specqd {

using MeasuredCosts = std::map<int64_t, double>;  // seconds by number of rows

// Seconds of a forward by its number of rows: those of the first rows, then a measured curve times
// a factor, and a price for each row besides. A Kalman filter learns the three from forwards: it
// knows how far each of them is from certain, and so which of them an unexpected time is put down
// to. The price is needed because a factor would leave rows free that seemed so when they were
// measured. Interference only adds time: so faster samples weigh more, and none counts for more
// than twice what was expected. More rows never cost less.
class RowCosts {
 public:
  // Starts from seconds by rows, of one row at least. No forward has fewer rows than `first`.
  void begin(const MeasuredCosts& measured, int64_t first = 1);
  void add(int64_t rows, double seconds);
  // Estimated; 0 where nothing was measured yet.
  double seconds(double rows) const;

 private:
  enum : size_t { kFirst, kFactor, kPrice, kParts };
  using Parts = std::array<double, kParts>;

  // What a forward has of each part: seconds() is the sum of these times `learned_`.
  Parts parts_of(double rows) const;
  double measured_seconds(double rows) const;  // interpolated

  std::vector<std::pair<double, double>> measured_;  // rows, seconds
  double first_ = 1.0;
  Parts learned_{};  // seconds of the first rows, factor of the curve, seconds of each further row
  Parts variances_{};  // of these before anything is learned
  std::array<Parts, kParts> covariance_{};
};

// RowCosts by batch size. As many rows of more sequences read more keys and values; these count
// with the first row of each sequence, since its further rows read nothing more.
class BatchCosts {
 public:
  // Starts all sizes from measurements of one sequence.
  void begin(const MeasuredCosts& measured);
  // Costs of forwards for about `count` sequences.
  const std::shared_ptr<RowCosts>& of(size_t count);

 private:
  MeasuredCosts measured_;
  std::map<int, std::shared_ptr<RowCosts>> costs_;
};

// Seconds of a forward that reads parts of prompts: so many a row, and so many more by the
// positions before it. A sample changes the two in proportion to what they contributed to it.
class ReadingCosts {
 public:
  // Starts from seconds by rows, at the first positions. Until then nothing is known.
  void begin(const MeasuredCosts& measured);
  // Learns from a forward of `rows` rows with `positions` positions before them, summed over rows.
  void add(double rows, double positions, double seconds);
  // Estimated; 0 if nothing is known.
  double seconds(double rows, double position) const;
  // Rows from `position` on that take at most so many seconds; none if nothing is known.
  std::optional<double> rows_within(double seconds, double position) const;

 private:
  double row_s_ = 0.0, position_s_ = 0.0;  // of a row; of a thousand positions before a row
};

// Tokens per second of a level, over its recent rounds. It remembers few: an accepted token saves
// what the tokens near it take, and a repetitive passage comes much faster than others.
class TokenRate {
 public:
  void add(double tokens, double seconds);
  void fade();  // the next tokens may take less
  // 1 / rate; none before anything was made.
  std::optional<double> seconds_per_token() const;

 private:
  double tokens_ = 0.0, seconds_ = 0.0;
};

// Allows rounds that do not seem to pay, for a bounded share of the time.
//
// A probe may begin while nothing is owed, if what it must make up for first can be paid. It is
// charged what it turned out to cost, and what its accepted tokens save is paid back: a probe that
// was accepted is free, and the next may follow at once.
class ProbeBudget {
 public:
  explicit ProbeBudget(double share = 0.01) : share_(share) {}

  // The budget to begin with, and the most that it can hold.
  void begin(double seconds) { most_ = saved_ = seconds; }
  void pass(double seconds) { refund(share_ * seconds); }  // so much time went by
  bool is_open() const { return saved_ > 0.0; }
  // Whether a probe may first cost so much. If not, as much may be saved for it.
  bool allows(double seconds);
  void charge(double seconds) { saved_ -= seconds; }
  void refund(double seconds) { saved_ = std::min(saved_ + seconds, most_); }

 private:
  double share_;
  double saved_ = 0.0, most_ = 0.0;
};

}  // namespace specqd
