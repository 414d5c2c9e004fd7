// The activation of feed forwards.
#pragma once

#include <cstdint>

#include "model/traits.h"

namespace specqd {

// Applies the activation to outputs [first, first + count) of the product with `gate_up`, `result`:
// alternating panels of gate and up projection, or the up projection alone. `out` is [rows][width].
void activate(const Traits& traits, const FeedForward& weights, int64_t first, int64_t count,
              float* result, int64_t stride, int64_t rows, float* out);

}  // namespace specqd
