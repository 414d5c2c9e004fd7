// What all blocks of a decoder share: its traits, the kernels, and the norm and activation that
// follow from both.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"
#include "model/decoder_spec.h"

namespace specqd {

struct Traits {
  // Throws std::invalid_argument if the activation needs a gate that the model does not have.
  Traits(DecoderSpec spec, const Kernels& kernels);

  DecoderSpec spec;
  const Kernels& kernels;
  // out[i] = act(gate[i]) * up[i], or act(gate[i]) if `up` is null. Null for xIELU, which has
  // parameters of its own in each feed forward.
  void (*activate)(const float* gate, const float* up, int64_t n, float* out);

  // Normalises n values. `out` may be `x`; `bias` may be null.
  void norm(const uint16_t* weight, const uint16_t* bias, const float* x, int64_t n,
            float* out) const;
  void norm(const Norm& norm, const float* x, int64_t n, float* out) const;
};

}  // namespace specqd
