// The attention that the rows of a forward pay to each page: sums of softmax weights by strip (a
// key-value head of a layer without a window), row and head. This file knows no sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/memory.h"

namespace specqd {

class PageWeights {
 public:
  // `heads`: query heads of each strip.
  explicit PageWeights(std::vector<int64_t> heads);

  // Makes room for the rows of a forward: `pages` has the number of pages of each.
  void begin(std::span<const int64_t> pages);
  // The weights of a row's head, by page.
  std::span<float> of(int64_t strip, int64_t row, int64_t head) {
    return {floats() + index(strip, row, head), static_cast<size_t>(pages_of(row))};
  }
  // Sums of rows [first, last), which have as many pages, over all heads: [strips][pages].
  std::vector<float> sums(int64_t first, int64_t last) const;

 private:
  int64_t pages_of(int64_t row) const {
    const auto at = static_cast<size_t>(row);
    return starts_[at + 1] - starts_[at];
  }
  int64_t index(int64_t strip, int64_t row, int64_t head) const {
    return (strip * starts_.back() + starts_[static_cast<size_t>(row)]) * most_heads_ +
           head * pages_of(row);
  }
  float* floats() const { return reinterpret_cast<float*>(memory_.data()); }

  std::vector<int64_t> heads_;
  int64_t most_heads_ = 0;
  std::vector<int64_t> starts_{0};  // of each row, in pages, and the end
  Memory memory_;
};

}  // namespace specqd
