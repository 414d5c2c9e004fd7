// Sums, over rows, of the products of every two inputs of a matrix. They measure how much errors in
// draft weights matter, each alone and in pairs.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/pool.h"
#include "weights/pack.h"

namespace specqd {

// Inputs are clamped to a magnitude of 2^12. Sums are fp32 and go row after row, so they depend
// neither on threads nor on how a text is split into forwards. Experts are an exception: their rows
// are sorted within each forward.
class InputProducts {
 public:
  // `most_rows`: the most rows of a product. A null weight has no inputs.
  InputProducts(const std::vector<const PackedWeight*>& weights, int64_t most_rows);

  // Keeps one row of a weight's inputs, if the weight is one of the constructor's. Several threads
  // may call it for different rows at the same time.
  void hold(const PackedWeight& weight, int64_t row, const float* inputs);
  // Adds the products of the rows that all threads have kept. Every thread calls it.
  void add(Team& team, const Kernels& kernels, const PackedWeight& weight, int64_t rows);

  // Moves the sums out, in the order of the constructor's weights: [columns][kFeedbackInputs], the
  // products of each input with the inputs of its group.
  std::vector<std::vector<float>> take();

 private:
  std::unordered_map<const PackedWeight*, size_t> index_;
  std::vector<const PackedWeight*> weights_;
  std::vector<std::vector<float>> sums_;  // [padded columns][kFeedbackInputs]
  std::vector<float> rows_;
};

}  // namespace specqd
