#include "model/input_squares.h"

#include <algorithm>
#include <atomic>

namespace specqd {
namespace {

constexpr double kStep = 0x1p-28, kMost = 0x1p24;

}  // namespace

InputSquares::InputSquares(const std::vector<const PackedWeight*>& weights) {
  for (const PackedWeight* weight : weights) {
    if (weight != nullptr) index_.emplace(weight, sums_.size());
    sums_.emplace_back(weight != nullptr ? static_cast<size_t>(weight->columns()) : 0, 0);
  }
}

void InputSquares::add(const PackedWeight& weight, const float* inputs) {
  const auto found = index_.find(&weight);
  if (found == index_.end()) return;
  std::vector<uint64_t>& sums = sums_[found->second];
  for (size_t k = 0; k < sums.size(); ++k) {
    const double square = static_cast<double>(inputs[k]) * inputs[k];
    const auto steps = static_cast<uint64_t>(std::min(square, kMost) / kStep);
    std::atomic_ref(sums[k]).fetch_add(steps, std::memory_order_relaxed);
  }
}

std::vector<std::vector<double>> InputSquares::sums() const {
  std::vector<std::vector<double>> all;
  for (const std::vector<uint64_t>& each : sums_) {
    std::vector<double>& sum = all.emplace_back();
    for (const uint64_t steps : each) sum.push_back(static_cast<double>(steps) * kStep);
  }
  return all;
}

}  // namespace specqd
