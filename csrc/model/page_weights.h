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

  // Makes room for the rows of a forward, each with up to `pages` pages.
  void begin(int64_t rows, int64_t pages);
  int64_t pages() const { return pages_; }
  // The weights of a row's head, [pages].
  float* of(int64_t strip, int64_t row, int64_t head) {
    return reinterpret_cast<float*>(memory_.data()) + index(strip, row, head);
  }
  // Sums of rows [first, last) over all heads: [strips][pages].
  std::vector<float> sums(int64_t first, int64_t last) const;

 private:
  int64_t index(int64_t strip, int64_t row, int64_t head) const {
    return ((strip * rows_ + row) * most_heads_ + head) * pages_;
  }

  std::vector<int64_t> heads_;
  int64_t most_heads_ = 0, rows_ = 0, pages_ = 0;
  Memory memory_;
};

}  // namespace specqd
