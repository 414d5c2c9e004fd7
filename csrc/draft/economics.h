// What drafting costs and what it round_value: tracked costs, calibrated confidences, pace.
//
// Pure bookkeeping over numbers that others measure; knows no models, tokens or clocks.
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

// Stated confidence -> how often such tokens were right, learned from verification.
//
// Starts on a line from `floor`, at no confidence, to certainty. An optimistic floor makes it try
// what it does not know yet, and so learn; the pessimist never finds out. Forgets slowly: `memory`
// is the observations of a bin after which older ones fade.
class Calibration {
 public:
  explicit Calibration(double floor = 0.0, double memory = 300.0);

  // How likely a token stated with this confidence is accepted.
  double probability(double confidence) const;
  void observe(double confidence, bool is_right);

 private:
  static constexpr size_t kBins = 14;

  double memory_;
  std::array<double, kBins> weight_, right_;
};

// How much of what was expected of tokens came true, where they were chosen for it: whoever takes
// what looks best is disappointed. Starts at all of it; older tokens fade.
class BypassBias {
 public:
  double share() const { return (kPrior + right_) / (kPrior + expected_); }
  void observe(double chance, bool is_right);

 private:
  static constexpr double kPrior = 32.0;  // tokens

  double expected_ = 0.0, right_ = 0.0;
};

// How often what a level says is confirmed, by its confidence.
struct AcceptanceModel {
  Calibration own{0.5, 200.0};    // in a token -> it is confirmed
  Calibration next{0.85, 100.0};  // in a token -> the next one is
  BypassBias bypass_bias;         // of its drafter's chances, where it did not look at the tokens
};

// A running estimate of what something takes on a machine that others use too.
//
// Interference only ever adds: so no sample counts for more than twice what was expected, and a
// lower one counts for more than a higher one, above all among the first.
class Estimate {
 public:
  void add(double sample);
  std::optional<double> value() const { return value_; }

 private:
  std::optional<double> value_;
  int count_ = 0;
};

// A running mean of recent samples; each new one counts for a tenth.
class Mean {
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
  std::array<double, kKnots> at_knots_{};
  int64_t count_ = 0;
  // Samples of the same number of rows, one after the other.
  int64_t run_rows_ = 0;
  int run_length_ = 0;
  double run_seconds_ = 0.0;
};

// RowCosts by the size of batches: as many rows of more texts read more keys and values.
class BatchCosts {
 public:
  // Starts all sizes from what was measured of one text.
  void begin(const MeasuredCosts& measured);
  // Of forwards for so many texts, or about as many.
  const std::shared_ptr<RowCosts>& of(size_t count);

 private:
  MeasuredCosts measured_;
  std::map<int, std::shared_ptr<RowCosts>> costs_;
};

// Tokens per second of a level, over its recent rounds: few, since a token that is confirmed saves
// what those near it take, and a text that repeats itself comes much faster than one that does not.
class TokenRate {
 public:
  void add(double tokens, double seconds);
  // 1 / pace; none before anything was made.
  std::optional<double> seconds_per_token() const;

 private:
  double tokens_ = 0.0, seconds_ = 0.0;
};

// Lets what does not pay be tried now and then, at a bounded share of the time.
//
// A probe is paid for twice: by what it is expected to lose before it is made, and by what it lost
// beyond that before the next one. Who tries what looks best expects too much of it: else more
// would be lost than the share. A probe that brought more than it cost is free, and the next may
// follow at once.
class ProbeBudget {
 public:
  explicit ProbeBudget(double share = 0.005) : share_(share) {}

  // So much may be lost to begin with, before anything could be saved.
  void lend(double seconds) { lent_ = saved_ = seconds; }
  void earn(double seconds) { saved_ += share_ * seconds; }  // so much time has gone by
  // Whether a probe could be paid that is expected to cost so much, and to lose so much of it.
  bool has(double cost, double loss) const;
  // Whether it could; takes it if so.
  bool allows(double cost, double loss);
  void cost(double seconds) { cost_ += seconds; }  // so long the last probe took
  void bring(double seconds);                      // so much the last probe's tokens saved

 private:
  double owed() const;

  double share_;
  double saved_ = 0.0;
  double lent_ = 0.0;  // is left of what was lent, and a part of what is saved
  // Of the last probe: what was taken for it, what it turned out to cost and to bring, and the most
  // that it may be candidate to have cost.
  double spent_ = 0.0, cost_ = 0.0, brought_ = 0.0, most_ = 0.0;
};

}  // namespace specqd
