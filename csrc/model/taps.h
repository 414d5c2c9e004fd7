// Copies of the residual stream at layer boundaries, the features that draft heads read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/batch.h"

namespace specqd {

class Taps {
 public:
  Taps(int64_t layers, int64_t hidden, int64_t max_rows)
      : layers_(layers), hidden_(hidden), max_rows_(max_rows) {}

  // Later forwards copy the residual stream of all rows at these boundaries. Boundary b is the
  // input of layer b; the last boundary, the number of layers, is the input of the final norm. If
  // there are no boundaries, nothing is copied. Throws std::invalid_argument unless they ascend
  // from 0 to the number of layers at most.
  void set(std::vector<int64_t> boundaries);
  std::span<const int64_t> boundaries() const { return boundaries_; }

  // Copies the residual stream if `boundary` is requested. Every thread calls it.
  void copy(Team& team, const Batch& batch, int64_t boundary);
  // The copies of the last forward's rows from `row`, finite BF16 [rows][boundaries][hidden].
  std::span<const uint16_t> rows(int64_t row, int64_t rows) const;

 private:
  int64_t layers_, hidden_, max_rows_;
  int64_t width_ = 0;  // values per row of copies
  std::vector<int64_t> boundaries_;
  std::vector<uint16_t> copies_;  // [rows][boundaries][hidden]
};

}  // namespace specqd
