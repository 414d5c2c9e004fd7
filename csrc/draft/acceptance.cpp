#include "draft/acceptance.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace specqd {
namespace {

// Bins of confidence are finer towards 1, where most confidences lie and differences count.
constexpr std::array<double, 13> kBinEdges{0.05, 0.15, 0.3,  0.45,  0.6,  0.7,  0.8,
                                           0.87, 0.92, 0.95, 0.975, 0.99, 0.997};
constexpr double kPriorWeight = 3.0;  // observations that a prior counts for

size_t bin_of(double confidence) {
  const auto at = std::upper_bound(kBinEdges.begin(), kBinEdges.end(), confidence);
  return static_cast<size_t>(at - kBinEdges.begin());
}

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

Calibration::Calibration(double floor, double memory) : memory_(memory) {
  for (size_t i = 0; i < kBins; ++i) {
    const double low = i == 0 ? 0.0 : kBinEdges[i - 1];
    const double high = i == kBinEdges.size() ? 1.0 : kBinEdges[i];
    prior_[i] = floor + (1.0 - floor) * (low + high) / 2.0;
  }
}

double Calibration::probability(double confidence) const {
  const size_t i = bin_of(confidence);
  return at(i, prior_[i]);
}

double Calibration::cautious_probability(double confidence) const {
  const size_t i = bin_of(confidence);
  const double seen = sum(weight_), of_others = (sum(accepted_) + prior_[i]) / (seen + 1.0);
  return at(i, std::min(prior_[i], of_others));
}

double Calibration::mean() const {
  return (sum(accepted_) + kPriorWeight * sum(prior_)) /
         (sum(weight_) + kPriorWeight * static_cast<double>(kBins));
}

double Calibration::at(size_t i, double prior) const {
  return (accepted_[i] + kPriorWeight * prior) / (weight_[i] + kPriorWeight);
}

void Calibration::observe(double confidence, bool is_accepted) {
  const size_t i = bin_of(confidence);
  if (weight_[i] >= memory_) {
    const double fade = 1.0 - 1.0 / memory_;
    weight_[i] *= fade;
    accepted_[i] *= fade;
  }
  weight_[i] += 1.0;
  if (is_accepted) accepted_[i] += 1.0;
}

}  // namespace specqd
