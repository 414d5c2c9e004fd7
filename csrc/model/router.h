// Chooses the experts of a row and their routing weights from the router's scores.
#pragma once

#include <cstdint>
#include <span>

#include "model/layer_weights.h"
#include "model/traits.h"

namespace specqd {

class Router {
 public:
  // An expert that a row has chosen.
  struct Choice {
    int32_t expert, slot;
    float weight;  // routing weight
  };

  Router(const Mixture& mixture, int64_t experts, const Traits& traits)
      : mixture_(mixture), experts_(experts), traits_(traits) {}

  // Number of floats in a row of scores: the router's rows, padded to whole blocks.
  int64_t padded() const;
  // Chooses the best experts of a row and their routing weights. Of experts with equal scores, the
  // lower index comes first. Both arrays have padded() floats and are overwritten; `scores` holds
  // the router's outputs. `shared_gate` becomes the factor on the shared feed forward.
  void choose(float* scores, float* choice_scores, std::span<Choice> chosen,
              float& shared_gate) const;

 private:
  void correct(const float* sigmoids, float* out) const;
  void weigh(std::span<Choice> chosen, float* scores) const;

  const Mixture& mixture_;
  int64_t experts_;
  const Traits& traits_;
};

}  // namespace specqd
