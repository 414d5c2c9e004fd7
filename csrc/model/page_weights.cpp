#include "model/page_weights.h"

#include <algorithm>
#include <utility>

namespace specqd {

PageWeights::PageWeights(std::vector<int64_t> heads) : heads_(std::move(heads)) {
  if (!heads_.empty()) most_heads_ = std::ranges::max(heads_);
}

void PageWeights::begin(std::span<const int64_t> pages) {
  starts_.assign(1, 0);
  for (const int64_t each : pages) starts_.push_back(starts_.back() + each);
  const auto floats = std::ssize(heads_) * starts_.back() * most_heads_;
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (bytes > memory_.size()) memory_ = Memory(bytes + bytes / 2);
}

std::vector<float> PageWeights::sums(int64_t first, int64_t last) const {
  const int64_t pages = first < last ? pages_of(first) : 0;
  std::vector<float> sums(heads_.size() * static_cast<size_t>(pages));
  for (size_t strip = 0; strip < heads_.size(); ++strip) {
    float* const out = sums.data() + strip * static_cast<size_t>(pages);
    for (int64_t row = first; row < last; ++row)
      for (int64_t head = 0; head < heads_[strip]; ++head) {
        const float* const weights = floats() + index(static_cast<int64_t>(strip), row, head);
        for (int64_t page = 0; page < pages; ++page) out[page] += weights[page];
      }
  }
  return sums;
}

}  // namespace specqd
