#include "model/page_weights.h"

#include <algorithm>
#include <utility>

namespace specqd {

PageWeights::PageWeights(std::vector<int64_t> heads) : heads_(std::move(heads)) {
  if (!heads_.empty()) most_heads_ = std::ranges::max(heads_);
}

void PageWeights::begin(int64_t rows, int64_t pages) {
  rows_ = rows;
  pages_ = pages;
  const auto bytes = static_cast<size_t>(index(std::ssize(heads_), 0, 0)) * sizeof(float);
  if (bytes > memory_.size()) memory_ = Memory(bytes + bytes / 2);
}

std::vector<float> PageWeights::sums(int64_t first, int64_t last) const {
  std::vector<float> sums(heads_.size() * static_cast<size_t>(pages_));
  for (size_t strip = 0; strip < heads_.size(); ++strip) {
    float* const out = sums.data() + strip * static_cast<size_t>(pages_);
    for (int64_t row = first; row < last; ++row)
      for (int64_t head = 0; head < heads_[strip]; ++head) {
        const float* const weights = reinterpret_cast<const float*>(memory_.data()) +
                                     index(static_cast<int64_t>(strip), row, head);
        for (int64_t page = 0; page < pages_; ++page) out[page] += weights[page];
      }
  }
  return sums;
}

}  // namespace specqd
