// The squared inputs of a decoder's products, summed over rows: how much each input of a matrix
// matters to a draft.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "weights/pack.h"

namespace specqd {

// Sums are integers, so that they do not depend on the order in which threads add. A square counts
// at most 2^24, in steps of 2^-28.
class InputSquares {
 public:
  // A null weight has no inputs.
  explicit InputSquares(const std::vector<const PackedWeight*>& weights);

  // Adds one row of a weight's inputs; does nothing for other weights. Safe on several threads.
  void add(const PackedWeight& weight, const float* inputs);
  // [columns] of each weight, in the order of the constructor.
  std::vector<std::vector<double>> sums() const;

 private:
  std::unordered_map<const PackedWeight*, size_t> index_;
  std::vector<std::vector<uint64_t>> sums_;
};

}  // namespace specqd
