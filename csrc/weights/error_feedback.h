// Error feedback: later weights of a row make up for the errors of those rounded before them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/pool.h"

namespace specqd {

// Inputs whose errors are made up for together: a group, a multiple of 32.
constexpr int64_t kFeedbackInputs = 256;

// Factors [padded columns][kFeedbackInputs], by which the error of one input's weight is added to
// the later weights of its group. `products` [columns][kFeedbackInputs] holds the sums of products
// of each input with the later ones of its group; others are not read.
//
// With the sums H, a row's errors e cost e H e^T. If H = (F + 1) D (F + 1)^T for a diagonal D and a
// strictly upper F, that is the sum of D_k (e_k + (e F)_k)^2. So weights are rounded in order, each
// to its value plus (e F)_k, where the errors are exact minus rounded weights. This is GPTQ (arXiv
// 2210.17323) as QuIP (2307.13304) writes it. A hundredth of the mean square is added to each
// square first, so that dependent inputs make no large factors.
std::vector<float> feedback_factors(Pool& pool, std::span<const float> products, int64_t columns);

// What the weights of one panel lack while its tiles are encoded.
class ErrorFeedback {
 public:
  // `factors` [padded columns][group]; if empty, weights are rounded to the nearest code.
  explicit ErrorFeedback(std::span<const float> factors, int64_t group = kFeedbackInputs);

  // The feedback of a tile of the panel; tiles come in order, from 0. Null without factors.
  const TileFeedback* tile(int64_t tile);

 private:
  std::span<const float> factors_;
  int64_t group_;
  std::vector<float> pending_;  // [group][16]
  TileFeedback feedback_{};
};

}  // namespace specqd
