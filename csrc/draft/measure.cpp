#include "draft/measure.h"

#include <algorithm>
#include <array>
#include <memory>

namespace specqd {
namespace {

constexpr std::array<int64_t, 5> kMeasuredRows{1, 2, 4, 9, 16};
constexpr int64_t kMostMeasuredRows = 48;  // measured once: batches draft at many rows
constexpr int kLeastMeasurements = 2, kMostMeasurements = 5;
constexpr double kMeasuringSeconds = 0.3;  // after which no further one is begun

double forward_seconds(LevelModel& model, const std::function<double()>& clock,
                       const std::shared_ptr<Context>& context, int64_t rows) {
  const double begun = clock();
  Rows batch{context, 0, {}, static_cast<size_t>(rows)};
  for (int64_t token = 0; token < rows; ++token)  // different ones may choose different experts
    batch.tokens.push_back(static_cast<int32_t>(token % model.vocabulary()));
  model.forward({&batch, 1});
  return clock() - begun;
}

}  // namespace

MeasuredCosts measured_costs(LevelModel& model, const std::function<double()>& clock) {
  const std::array<int32_t, 1> start{0};
  const auto sequence = std::make_shared<Sequence>(start, std::make_shared<Sampler>(), 1);
  const auto context = model.context(sequence);
  context->begin(0);
  const int64_t most = std::min(model.max_positions(), model.max_rows());
  MeasuredCosts least;
  const auto take = [&](int64_t rows) {
    const double seconds = forward_seconds(model, clock, context, rows);
    const auto [at, is_first] = least.try_emplace(rows, seconds);
    if (!is_first) at->second = std::min(at->second, seconds);
  };
  const double begun = clock();
  for (int i = 0; i < kMostMeasurements; ++i) {  // interleaved: what slows one slows all
    if (i >= kLeastMeasurements && clock() - begun > kMeasuringSeconds) break;
    if (i == 1 && most >= kMostMeasuredRows) take(kMostMeasuredRows);
    for (const int64_t rows : kMeasuredRows)
      if (rows <= most) take(rows);
  }
  model.release(sequence);
  return least;
}

}  // namespace specqd
