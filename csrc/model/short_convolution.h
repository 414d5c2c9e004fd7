// The short convolution of recurrent layers, whose inputs are part of a sequence's states
// (recurrent_states.h).
#pragma once

#include <cstdint>

#include "model/batch.h"
#include "model/layer_weights.h"
#include "model/recurrent_states.h"

namespace specqd {

constexpr int64_t kLargestConvolvedPart = kLargestDeltaDim;  // the most channels at once

class ShortConvolution {
 public:
  // `state_layer` is an index among the recurrent layers.
  ShortConvolution(const LayerWeights& layer, int64_t state_layer, const Traits& traits)
      : traits_(traits),
        layer_(state_layer),
        weight_(layer.convolution),
        bias_(layer.convolution_bias),
        has_activation_(layer.delta != nullptr) {}

  // Keeps the inputs of a position and computes its outputs, both of channels
  // [first, first + count). `out` may be `in`.
  void run(const SequenceStates& states, int64_t position, int64_t first, int64_t count,
           const float* in, float* out) const;
  // Copies the inputs that rows after the next anchor will read into that anchor's state.
  void keep_inputs(const SequenceStates& states, const StateStep& step, int64_t first,
                   int64_t count) const;

 private:
  const Traits& traits_;
  int64_t layer_;
  Vector weight_, bias_;  // [kernel width][channels]; [channels]
  bool has_activation_;
};

}  // namespace specqd
