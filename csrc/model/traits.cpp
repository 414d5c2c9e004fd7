#include "model/traits.h"

#include <stdexcept>
#include <utility>

namespace specqd {
namespace {

decltype(Traits::activate) activation_of(const Kernels& kernels, const DecoderSpec& spec) {
  const bool needs_gate =
      spec.activation == Activation::kSilu || spec.activation == Activation::kClampedSwiglu;
  if (!spec.is_gated && needs_gate)
    throw std::invalid_argument("a feed forward without a gate needs another activation");
  if (spec.is_gated && spec.activation == Activation::kXielu)
    throw std::invalid_argument("xIELU has no gate");
  switch (spec.activation) {
    case Activation::kGelu:
      return kernels.gelu_times;
    case Activation::kGeluTanh:
      return kernels.gelu_tanh_times;
    case Activation::kClampedSwiglu:
      return kernels.clamped_swiglu;
    case Activation::kReluSquared:
      return kernels.relu_squared_times;
    case Activation::kXielu:
      return nullptr;
    case Activation::kSilu:
      break;
  }
  return kernels.silu_times;
}

}  // namespace

Traits::Traits(DecoderSpec given, const Kernels& all_kernels)
    : spec(std::move(given)), kernels(all_kernels), activate(activation_of(kernels, spec)) {}

void Traits::norm(const uint16_t* weight, const uint16_t* bias, const float* x, int64_t n,
                  float* out) const {
  if (spec.norm == NormKind::kRms)
    kernels.rms_norm(x, weight, n, spec.norm_epsilon, spec.norm_offset, out);
  else
    kernels.layer_norm(x, weight, bias, n, spec.norm_epsilon, out);
}

void Traits::norm(const Norm& norm, const float* x, int64_t n, float* out) const {
  this->norm(norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(), x, n, out);
}

}  // namespace specqd
