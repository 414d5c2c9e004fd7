// Error feedback: the later weights of a row make up for the rounding errors of earlier ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/pool.h"

namespace specqd {

// The inputs of a group, a multiple of 32. Errors are passed on only within a group.
constexpr int64_t kFeedbackInputs = 256;

// Returns the factors F [padded columns][kFeedbackInputs] by which the error of each input's weight
// is added to the later weights of its group. `products` [columns][kFeedbackInputs] holds the sums
// of products of each input with itself and with the later ones of its group; other entries are not
// read.
//
// Let H be the matrix of these sums. The rounding errors e of a row cost e H e^T. If H = (F + 1) D
// (F + 1)^T for a diagonal D and a strictly upper triangular F, the cost is the sum of D_k (e_k +
// (e F)_k)^2. Therefore weights are rounded in order, each to its value plus (e F)_k, where an
// error is the exact weight minus the rounded one. This is GPTQ (arXiv 2210.17323) in the notation
// of QuIP (arXiv 2307.13304). First, a hundredth of the mean square is added to each square, so
// that inputs that depend on each other do not cause large factors.
std::vector<float> feedback_factors(Pool& pool, std::span<const float> products, int64_t columns);

// The pending corrections of the weights of one panel, while its tiles are encoded.
class ErrorFeedback {
 public:
  // `factors` is [padded columns][group]. If it is empty, weights are rounded to the nearest code.
  explicit ErrorFeedback(std::span<const float> factors, int64_t group = kFeedbackInputs);

  // Returns the feedback for encoding a tile of the panel, or null without factors. The tiles of a
  // panel must be encoded in order, from 0.
  const TileFeedback* tile(int64_t tile);

 private:
  std::span<const float> factors_;
  int64_t group_;
  std::vector<float> pending_;  // [group][16]
  TileFeedback feedback_{};
};

}  // namespace specqd
