#include "draft/acceptance.h"

#include <algorithm>

namespace specqd {
namespace {

// Bins of confidence are finer towards 1, where most confidences are and differences count.
constexpr std::array<double, 4> kBinEdges{0.3, 0.7, 0.9, 0.97};
constexpr double kPriorWeight = 2.0;  // observations that the prior counts for
constexpr double kMemory = 200.0;     // observations of a bin after which older ones fade

size_t bin_of(double confidence) {
  const auto at = std::upper_bound(kBinEdges.begin(), kBinEdges.end(), confidence);
  return static_cast<size_t>(at - kBinEdges.begin());
}

}  // namespace

double Calibration::probability(double confidence) const {
  const size_t i = bin_of(confidence);
  const double prior = floor_ + (1.0 - floor_) * confidence;
  return (accepted_[i] + kPriorWeight * prior) / (weight_[i] + kPriorWeight);
}

void Calibration::observe(double confidence, bool is_accepted) {
  const size_t i = bin_of(confidence);
  if (weight_[i] >= kMemory) {
    const double fade = 1.0 - 1.0 / kMemory;
    weight_[i] *= fade;
    accepted_[i] *= fade;
  }
  weight_[i] += 1.0;
  if (is_accepted) accepted_[i] += 1.0;
}

}  // namespace specqd
