// How much attention the rows of a forward pay to each page: sums of softmax weights, by row, head
// and layer without a window. This file knows no sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/memory.h"

namespace specqd {

class PageWeights {
 public:
  // `heads`: of each layer without a window.
  explicit PageWeights(std::vector<int64_t> heads);

  // Makes room for the rows of a forward, each with up to `pages` pages.
  void begin(int64_t rows, int64_t pages);
  int64_t pages() const { return pages_; }
  // The weights of a row's head, [pages].
  float* of(int64_t full_layer, int64_t row, int64_t head) {
    return reinterpret_cast<float*>(memory_.data()) + index(full_layer, row, head);
  }
  // Sums of rows [first, last) over all heads: [full layers][pages].
  std::vector<float> sums(int64_t first, int64_t last) const;

 private:
  int64_t index(int64_t full_layer, int64_t row, int64_t head) const {
    return ((full_layer * rows_ + row) * most_heads_ + head) * pages_;
  }

  std::vector<int64_t> heads_;
  int64_t most_heads_ = 0, rows_ = 0, pages_ = 0;
  Memory memory_;
};

}  // namespace specqd
