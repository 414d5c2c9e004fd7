#include "draft/level_costs.h"

#include <algorithm>

#include "draft/drafter.h"

namespace specqd {

void LevelCosts::begin(const MeasuredCosts& measured) {
  forwards.begin(measured);
  reading_.begin(measured);
}

void LevelCosts::add_reading(int64_t rows, double positions, double seconds) {
  reading_.add(static_cast<double>(rows), positions, seconds);
}

void LevelCosts::add_round(size_t count, size_t tokens, double seconds) {
  rates_[count].add(static_cast<double>(tokens), seconds);
}

std::optional<int64_t> LevelCosts::tokens_within(double seconds, int64_t position) const {
  const auto tokens = reading_.rows_within(seconds, static_cast<double>(position));
  return tokens ? std::optional(static_cast<int64_t>(*tokens)) : std::nullopt;
}

double LevelCosts::catch_up_seconds(int64_t lag, int64_t length, size_t count) {
  if (lag <= 0) return 0.0;
  const auto rows = static_cast<double>(lag), usual = static_cast<double>(count);
  if (lag > kLongestProposal) return reading_.seconds(rows, static_cast<double>(length) - rows);
  const RowCosts& costs = *forwards.of(count);
  return costs.seconds(usual + rows) - costs.seconds(usual);
}

double LevelCosts::seconds_per_token(size_t count) {
  const auto sequences = static_cast<double>(count);
  const double now = rates_[count].seconds_per_token().value_or(kAlwaysDraft);
  const double plain = forwards.of(count)->seconds(sequences) / sequences;
  return std::min(now, plain > 0.0 ? plain : kAlwaysDraft);
}

}  // namespace specqd
