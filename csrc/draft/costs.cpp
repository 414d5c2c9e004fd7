#include "draft/costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace specqd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows between which further ones are taken to cost alike.
constexpr std::array<double, 12> kKnotRows{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128};
constexpr int kLongestRun = 8;
constexpr double kSlope = 0.1;             // of the first row: what a further one may well cost
constexpr double kUnseen = 0.25;           // variance of what was never seen, or not for long
constexpr double kMeasured = 0.05 * 0.05;  // variance of what was measured with care
constexpr double kDrift = 0.02 * 0.02;     // of a variance, with each sample of something else
constexpr double kNoiseBelow = 0.1, kNoiseAbove = 0.15;  // of samples, against what was expected

constexpr double kOutlier = 2.0;  // times what was expected: what anything counts for at most
constexpr double kMeanShare = 0.1;
constexpr double kRateRounds = 8.0;  // that a rate remembers

// Knots at or below so many rows.
size_t knots_within(double rows) {
  const auto at = std::upper_bound(kKnotRows.begin(), kKnotRows.end(), rows);
  return static_cast<size_t>(at - kKnotRows.begin());
}

}  // namespace

void RunningMean::add(double sample) {
  const double before = value_.value_or(sample);
  value_ = before + kMeanShare * (sample - before);
}

RowCosts::RowCosts() { variances_.fill(kUnseen); }

void RowCosts::begin(const MeasuredCosts& measured) {
  std::vector<double> rows, seconds;
  for (const auto& [count, took] : measured) {
    rows.push_back(static_cast<double>(count));
    seconds.push_back(took);
  }
  for (size_t i = rows.size() - 1; i-- > 0;)  // interference only adds
    seconds[i] = std::min(seconds[i], seconds[i + 1]);
  parts_[0] = seconds.at(0);
  variances_[0] = kMeasured;
  for (size_t i = 0; i < kKnots; ++i) {
    const auto at = std::upper_bound(rows.begin(), rows.end(), kKnotRows[i]) - rows.begin();
    const size_t high = std::min(static_cast<size_t>(at), rows.size() - 1);
    if (high > 0)
      parts_[i + 1] = (seconds[high] - seconds[high - 1]) / (rows[high] - rows[high - 1]);
  }
  sum();
}

void RowCosts::add(int64_t rows, double seconds) {
  if (run_length_ > 0 && (rows != run_rows_ || run_length_ == kLongestRun)) {
    learn(run_rows_, run_seconds_ / run_length_, run_length_);
    run_length_ = 0;
    run_seconds_ = 0.0;
  }
  run_rows_ = rows;
  ++run_length_;
  run_seconds_ += seconds;
  if (parts_[0] == 0.0) {
    parts_[0] = seconds;
    sum();
  }
}

void RowCosts::learn(int64_t rows, double seconds, int samples) {
  const double expected = this->seconds(static_cast<double>(rows));
  const double error = std::min(seconds, kOutlier * expected) - expected;
  const double noise = (error > 0.0 ? kNoiseAbove : kNoiseBelow) * expected;
  count_ += samples;
  const size_t end = 1 + knots_within(static_cast<double>(rows - 1));  // of the parts of `expected`
  std::array<double, kParts> spans, leverage;
  spans[0] = 1.0;
  for (size_t i = 1; i < end; ++i) {
    const double last = i < kKnots ? kKnotRows[i] : kInfinity;
    spans[i] = std::min(static_cast<double>(rows), last) - kKnotRows[i - 1];
  }
  double total = noise * noise / samples;
  for (size_t i = 0; i < end; ++i) {
    leverage[i] = unit(i) * spans[i] * variance(i);
    total += leverage[i] * unit(i) * spans[i];
  }
  const double last = parts_[end - 1];
  for (size_t i = 0; i < end; ++i) {
    const double share = leverage[i] / total, size = unit(i);
    variances_[i] = variance(i) * (1.0 - share * size * spans[i]);
    seen_[i] = count_;
    parts_[i] = std::max(parts_[i] + share * size * error, 0.0);
  }
  pull(end, (parts_[end - 1] - last) / unit(end - 1));
  sum();
}

// The size that a part's variance relates to. It is above 0 for a part that seems free.
double RowCosts::unit(size_t part) const {
  return parts_[part] + (part == 0 ? 0.0 : kSlope * parts_[0]);
}

double RowCosts::variance(size_t part) const {
  const auto unseen = static_cast<double>(count_ - seen_[part]);
  return std::min(variances_[part] + kDrift * unseen, kUnseen);
}

// The parts from `start` on, as far as they are uncertain, follow the one before.
void RowCosts::pull(size_t start, double change) {
  if (std::abs(change) <= 0.01) return;
  for (size_t i = start; i < kParts; ++i)
    parts_[i] *= std::max(1.0 + std::sqrt(variance(i) / kUnseen) * change, 0.5);
}

double RowCosts::seconds(double rows) const {
  if (rows <= 1.0) return parts_[0];
  const size_t at = knots_within(rows) - 1;
  return at_knots_[at] + parts_[at + 1] * (rows - kKnotRows[at]);
}

void RowCosts::sum() {
  at_knots_[0] = parts_[0];
  for (size_t i = 1; i < kKnots; ++i)
    at_knots_[i] = at_knots_[i - 1] + parts_[i] * (kKnotRows[i] - kKnotRows[i - 1]);
}

void BatchCosts::begin(const MeasuredCosts& measured) {
  measured_ = measured;
  costs_.clear();
}

const std::shared_ptr<RowCosts>& BatchCosts::of(size_t count) {
  std::shared_ptr<RowCosts>& costs = costs_[std::bit_width(count)];
  if (costs == nullptr) {
    costs = std::make_shared<RowCosts>();
    if (!measured_.empty()) costs->begin(measured_);
  }
  return costs;
}

void TokenRate::add(double tokens, double seconds) {
  const double fade = 1.0 - 1.0 / kRateRounds;
  tokens_ = tokens_ * fade + tokens;
  seconds_ = seconds_ * fade + seconds;
}

std::optional<double> TokenRate::seconds_per_token() const {
  return tokens_ > 0.0 ? std::optional(seconds_ / tokens_) : std::nullopt;
}

}  // namespace specqd
