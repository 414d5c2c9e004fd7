// Costs of drafting: seconds of forwards by their rows, the rate of tokens, a budget for probes.
//
// Bookkeeping over numbers that others measure; knows no models, tokens or clocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace specqd {

using MeasuredCosts = std::map<int64_t, double>;  // seconds by number of rows

// Seconds of a forward by its number of rows: a measured curve, whose first row and whose further
// rows have each become dearer or cheaper by a factor, and then a slope, which the second factor
// scales, too. A sample changes the factors by what they contribute to it, or the slope. The factor
// of further rows changes more: a long context makes these several times as dear, the first row
// only a little. Interference only adds time: so faster samples weigh more, and none counts for
// more than twice what was expected. More rows never cost less.
class RowCosts {
 public:
  // Starts from seconds by rows, of one row at least.
  void begin(const MeasuredCosts& measured);
  void add(int64_t rows, double seconds);
  // Estimated; 0 where nothing was measured yet.
  double seconds(double rows) const;

 private:
  // Measured seconds of the rows after the first one, interpolated.
  double measured_more(double rows) const;
  double beyond(double rows) const { return std::max(rows - measured_.back().first, 0.0); }

  std::vector<std::pair<double, double>> measured_;  // rows, seconds beyond those of the first row
  double first_s_ = 0.0, more_factor_ = 1.0;
  double slope_s_ = 0.0;  // of each row beyond those that were measured
  double row_s_ = 0.0;    // added for each further row
  double fewest_ = 0.0;   // rows of any forward so far
};

// RowCosts by batch size: as many rows of more sequences read more keys and values.
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
