#include "draft/acceptance.h"

#include <algorithm>
#include <utility>

namespace specqd {
namespace {

constexpr double kPriorWeight = 2.0;  // observations that the prior counts for
constexpr double kMemory = 200.0;     // observations of a bin after which older ones fade

}  // namespace

Calibration::Calibration(double floor, std::vector<double> edges, bool is_shared)
    : floor_(floor),
      is_shared_(is_shared),
      edges_(std::move(edges)),
      weight_(edges_.size() + 1),
      accepted_(edges_.size() + 1) {}

size_t Calibration::bin_of(double confidence) const {
  return static_cast<size_t>(std::ranges::upper_bound(edges_, confidence) - edges_.begin());
}

double Calibration::probability(double confidence) const {
  const size_t i = bin_of(confidence);
  const double usual = (all_accepted_ + kPriorWeight) / (all_expected_ + kPriorWeight);
  const double prior = (is_shared_ ? std::min(usual, 1.0) : 1.0) * line(confidence);
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
  const double fade = 1.0 - 1.0 / kMemory;
  all_expected_ = fade * all_expected_ + line(confidence);
  all_accepted_ *= fade;
  if (is_accepted) accepted_[i] += 1.0, all_accepted_ += 1.0;
}

}  // namespace specqd
