// The products of each two inputs of a decoder's matrices, summed over rows: how much the errors of
// a draft's weights matter, alone and together.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/pool.h"
#include "weights/pack.h"

namespace specqd {

// Inputs count at most 2^12 in magnitude. Sums are fp32, row after row, so that they depend neither
// on threads nor on how a text is cut into forwards (but for experts, whose rows are sorted).
class InputProducts {
 public:
  // `most_rows`: of a product. A null weight has no inputs.
  InputProducts(const std::vector<const PackedWeight*>& weights, int64_t most_rows);

  // Keeps one row of a weight's inputs, if the weight is one of those. Safe on several threads.
  void hold(const PackedWeight& weight, int64_t row, const float* inputs);
  // Adds the products of rows that all threads have held. Every thread calls it.
  void add(Team& team, const Kernels& kernels, const PackedWeight& weight, int64_t rows);

  // Moves the sums out, by weight in the order of the constructor: [columns][kFeedbackInputs], of
  // each input with those of its group.
  std::vector<std::vector<float>> take();

 private:
  std::unordered_map<const PackedWeight*, size_t> index_;
  std::vector<const PackedWeight*> weights_;
  std::vector<std::vector<float>> sums_;  // [padded columns][kFeedbackInputs]
  std::vector<float> rows_;
};

}  // namespace specqd
