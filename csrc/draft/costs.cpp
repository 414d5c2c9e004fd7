#include "draft/costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace specqd {
namespace {

constexpr double kRecent = 0.1;   // weight of the newest sample in rates
constexpr double kOutlier = 2.0;  // times the expected seconds: the most that a sample counts for
constexpr double kReading = 0.5;  // weight of the newest part of a prompt: parts are few and long
constexpr double kThousand = 1000.0;

// These standard deviations say how uncertain measured costs are. Those of seconds are shares of
// the first rows' seconds.
constexpr double kFirstDeviation = 0.3;
constexpr double kSequenceDeviation = 0.1;  // for each sequence but one: its keys and values
constexpr double kFactorDeviation = 0.5;
constexpr double kPriceDeviation = 0.05;  // attention behind a long context makes rows dear
constexpr double kDrift = 0.005;          // variance that comes with each sample
// A sample is this far from what its forward usually takes, as a share of that.
constexpr double kSlowerDeviation = 0.15, kFasterDeviation = 0.05;

}  // namespace

void RowCosts::begin(const MeasuredCosts& measured, int64_t first) {
  if (measured.empty()) throw std::invalid_argument("costs begin from a measured row at least");
  measured_.clear();
  for (const auto& [rows, seconds] : measured) {
    measured_.emplace_back(static_cast<double>(rows), seconds);
    for (auto& [fewer, less] : measured_) less = std::min(less, seconds);  // interference only adds
  }
  first_ = std::max(static_cast<double>(first), measured_.front().first);
  learned_ = {measured_seconds(first_), 1.0, 0.0};
  const double first_s = learned_[kFirst];
  const double deviations[] = {(kFirstDeviation + kSequenceDeviation * (first_ - 1.0)) * first_s,
                               kFactorDeviation, kPriceDeviation * first_s};
  covariance_ = {};
  for (size_t i = 0; i < kParts; ++i)
    covariance_[i][i] = variances_[i] = deviations[i] * deviations[i];
}

void RowCosts::add(int64_t rows, double seconds) {
  if (measured_.empty()) begin({{1, seconds}});
  const Parts parts = parts_of(static_cast<double>(rows));
  const double expected = this->seconds(static_cast<double>(rows));
  const double error = std::min(seconds, kOutlier * expected) - expected;
  const double deviation = (error > 0.0 ? kSlowerDeviation : kFasterDeviation) * expected;
  double variance = deviation * deviation;
  Parts shared{};  // covariance of each part with the seconds of this forward
  for (size_t i = 0; i < kParts; ++i) {
    covariance_[i][i] += kDrift * variances_[i];
    for (size_t j = 0; j < kParts; ++j) shared[i] += covariance_[i][j] * parts[j];
    variance += parts[i] * shared[i];
  }
  if (variance <= 0.0) return;  // forwards that take no time
  for (size_t i = 0; i < kParts; ++i) {
    learned_[i] = std::max(learned_[i] + shared[i] / variance * error, 0.0);
    for (size_t j = 0; j < kParts; ++j) covariance_[i][j] -= shared[i] * shared[j] / variance;
  }
}

double RowCosts::seconds(double rows) const {
  if (measured_.empty()) return 0.0;
  const Parts parts = parts_of(rows);
  return std::inner_product(parts.begin(), parts.end(), learned_.begin(), 0.0);
}

RowCosts::Parts RowCosts::parts_of(double rows) const {
  const double further = std::max(rows - first_, 0.0);
  return {1.0, measured_seconds(first_ + further) - measured_seconds(first_), further};
}

double RowCosts::measured_seconds(double rows) const {
  const size_t last = measured_.size() - 1;
  if (last == 0) return measured_[0].second;
  size_t above = 1;  // beyond the curve's end its last slope goes on
  while (above < last && measured_[above].first < rows) ++above;
  const auto& [low, low_s] = measured_[above - 1];
  const auto& [high, high_s] = measured_[above];
  return low_s + (high_s - low_s) * (rows - low) / (high - low);
}

void BatchCosts::begin(const MeasuredCosts& measured) {
  measured_ = measured;
  costs_.clear();
}

const std::shared_ptr<RowCosts>& BatchCosts::of(size_t count) {
  std::shared_ptr<RowCosts>& costs = costs_[std::bit_width(count)];
  if (costs == nullptr) {
    costs = std::make_shared<RowCosts>();
    if (!measured_.empty()) costs->begin(measured_, static_cast<int64_t>(std::bit_floor(count)));
  }
  return costs;
}

void ReadingCosts::begin(const MeasuredCosts& measured) {
  const auto& [rows, seconds] = *measured.rbegin();
  row_s_ = seconds / static_cast<double>(rows);
  position_s_ = 0.0;
}

void ReadingCosts::add(double rows, double positions, double seconds) {
  positions /= kThousand;
  const double expected = rows * row_s_ + positions * position_s_;
  if (expected <= 0.0) {
    row_s_ = seconds / rows;
    return;
  }
  const double error = std::min(seconds, kOutlier * expected) - expected;
  const double step = kReading * error / (rows * rows + positions * positions);
  row_s_ = std::max(row_s_ + step * rows, 0.0);
  position_s_ = std::max(position_s_ + step * positions, 0.0);
}

double ReadingCosts::seconds(double rows, double position) const {
  return rows * (row_s_ + position_s_ * (position + rows / 2.0) / kThousand);
}

std::optional<double> ReadingCosts::rows_within(double seconds, double position) const {
  // n rows take n * first_s + n * n * growth_s: the later ones have the earlier before them.
  const double first_s = row_s_ + position_s_ * position / kThousand;
  const double growth_s = position_s_ / kThousand / 2.0;
  if (first_s <= 0.0) return std::nullopt;
  return 2.0 * seconds / (first_s + std::sqrt(first_s * first_s + 4.0 * growth_s * seconds));
}

bool ProbeBudget::allows(double seconds) {
  if (seconds <= saved_) return true;
  most_ = std::max(most_, seconds);
  return false;
}

void TokenRate::add(double tokens, double seconds) {
  tokens_ = tokens_ * (1.0 - kRecent) + tokens;
  seconds_ = seconds_ * (1.0 - kRecent) + seconds;
}

void TokenRate::fade() { seconds_ *= 1.0 - kRecent; }

std::optional<double> TokenRate::seconds_per_token() const {
  return tokens_ > 0.0 ? std::optional(seconds_ / tokens_) : std::nullopt;
}

}  // namespace specqd
