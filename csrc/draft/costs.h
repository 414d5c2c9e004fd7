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
#include <vector>

namespace specqd {

// A running mean of recent samples; each new one counts for a tenth.
class RunningMean {
 public:
  void add(double sample);
  std::optional<double> value() const { return value_; }

 private:
  std::optional<double> value_;
};

using MeasuredCosts = std::map<int64_t, double>;  // seconds by number of rows

// Seconds of a forward by its number of rows: those of the first row, and what each more adds.
//
// A Kalman filter over these parts, each with a variance of its own: what was not seen for long is
// uncertain, and takes the blame when a forward takes longer or less than expected. Unseen parts
// follow their neighbours: else an old price is kept because nobody pays it. Samples above what was
// expected weigh less, and never count for more than twice that: interference only adds. More rows
// never cost less.
class RowCosts {
 public:
  RowCosts();

  // Starts from what was measured with care: seconds by rows, of one row at least.
  void begin(const MeasuredCosts& measured);
  // Learns from a sample; from a run of the same number of rows by its mean, at its end.
  void add(int64_t rows, double seconds);
  // Estimated; 0 where nothing was measured yet.
  double seconds(double rows) const;

 private:
  static constexpr size_t kKnots = 12, kParts = 1 + kKnots;

  void learn(int64_t rows, double seconds, int samples);
  double unit(size_t part) const;
  double variance(size_t part) const;
  void pull(size_t start, double change);
  void sum();

  // The first part is seconds of one row; then seconds a row from each knot to the next.
  std::array<double, kParts> parts_{}, variances_;  // a variance is of a share of its part
  std::array<int64_t, kParts> seen_{};              // the count at which it was as it says
  std::array<double, kKnots> at_knots_{};           // seconds at each knot
  int64_t count_ = 0;
  // Samples of the same number of rows, one after the other.
  int64_t run_rows_ = 0;
  int run_length_ = 0;
  double run_seconds_ = 0.0;
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

// Tokens a second of a level, over its recent rounds. It remembers few: an accepted token saves
// what the tokens near it take, and a repetitive passage comes much faster than others.
class TokenRate {
 public:
  void add(double tokens, double seconds);
  // 1 / rate; none before anything was made.
  std::optional<double> seconds_per_token() const;

 private:
  double tokens_ = 0.0, seconds_ = 0.0;
};

// Allows rounds that do not seem to pay, for a bounded share of the time.
//
// A probe may begin while nothing is owed, if what it must make up for first can be paid. It is
// charged what it turned out to cost, and what its accepted tokens save is paid back: a probe that
// was right is free, and the next may follow at once.
class ProbeBudget {
 public:
  explicit ProbeBudget(double share = 0.01) : share_(share) {}

  // The budget to begin with, and the most that it can hold.
  void begin(double seconds) { most_ = saved_ = seconds; }
  void pass(double seconds) { refund(share_ * seconds); }  // so much time went by
  bool is_open() const { return saved_ > 0.0; }
  double saved() const { return saved_; }
  void charge(double seconds) { saved_ -= seconds; }
  void refund(double seconds) { saved_ = std::min(saved_ + seconds, most_); }

 private:
  double share_;
  double saved_ = 0.0, most_ = 0.0;
};

}  // namespace specqd
