#include "draft/costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace specqd {
namespace {

constexpr double kRecent = 0.1;   // weight of the newest sample in means and rates
constexpr double kFaster = 0.2;   // the same of a forward that took less time than expected
constexpr double kOutlier = 2.0;  // times the expected seconds: the most that a sample counts for
constexpr double kReading = 0.5;  // weight of the newest part of a prompt: parts are few and long
// An error changes the factor of further rows this many times as readily as the first row:
// attention behind a long context can make further rows several times as dear.
constexpr double kFurtherWeight = 5.0;
// An error also changes the price of each further row, as readily as the factor of rows that cost
// this share of the first one. The factor alone leaves rows free that seemed free when measured.
constexpr double kRowPrice = 0.05;
constexpr double kThousand = 1000.0;

}  // namespace

void RowCosts::begin(const MeasuredCosts& measured) {
  if (measured.empty()) throw std::invalid_argument("costs begin from a measured row at least");
  measured_.clear();
  for (const auto& [rows, seconds] : measured) {
    measured_.emplace_back(static_cast<double>(rows), seconds);
    for (auto& [fewer, more] : measured_) more = std::min(more, seconds);  // interference only adds
  }
  first_s_ = measured_.front().second;
  row_s_ = 0.0;
  more_factor_ = 1.0;
  slope_s_ = 0.0;
  fewest_ = std::numeric_limits<double>::infinity();
  for (auto& [rows, seconds] : measured_) seconds -= first_s_;
  if (const size_t count = measured_.size(); count > 1)
    slope_s_ = (measured_[count - 1].second - measured_[count - 2].second) /
               (measured_[count - 1].first - measured_[count - 2].first);
}

void RowCosts::add(int64_t rows, double seconds) {
  if (measured_.empty()) begin({{1, seconds}});
  const auto count = static_cast<double>(rows);
  const double expected = this->seconds(count);
  const double error = std::min(seconds, kOutlier * expected) - expected;
  const double step = (error > 0.0 ? kRecent : kFaster) * error;
  fewest_ = std::min(fewest_, count);
  const double further = beyond(count);
  if (further > 0.0 && beyond(fewest_) == 0.0) {  // the others tell what fewer rows cost
    slope_s_ = std::max(slope_s_ + step / (more_factor_ * further), 0.0);
    return;
  }
  const double row = kRowPrice * first_s_, rows_s = row * (count - measured_.front().first);
  const double tail = more_factor_ * slope_s_ * further;
  const double more = more_factor_ * measured_more(count) + tail;
  const double total =
      first_s_ * first_s_ + kFurtherWeight * (more * more + rows_s * rows_s + tail * tail);
  slope_s_ *= 1.0 + step * kFurtherWeight * tail / total;
  row_s_ = std::max(row_s_ + step * kFurtherWeight * rows_s / total * row, 0.0);
  more_factor_ *= 1.0 + step * kFurtherWeight * more / total;
  first_s_ *= 1.0 + step * first_s_ / total;
}

double RowCosts::seconds(double rows) const {
  if (measured_.empty()) return 0.0;
  const double further = std::max(rows - measured_.front().first, 0.0);
  return first_s_ + row_s_ * further +
         more_factor_ * (measured_more(rows) + slope_s_ * beyond(rows));
}

double RowCosts::measured_more(double rows) const {
  if (rows <= measured_.front().first) return 0.0;
  if (rows >= measured_.back().first) return measured_.back().second;
  const auto above =
      std::ranges::find_if(measured_, [rows](const auto& point) { return point.first >= rows; });
  const auto& [high, high_s] = *above;
  const auto& [low, low_s] = *(above - 1);
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
    if (!measured_.empty()) costs->begin(measured_);
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
