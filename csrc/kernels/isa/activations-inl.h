// The activations of feed-forward layers, and the soft cap of scores and logits.
#pragma once

#include "kernels/isa/ops-inl.h"

namespace specqd {
namespace {

inline F16 magnitude_of(F16 x) { return bits_as<F16>(bits_as<U16>(x) & 0x7fffffffu); }

// tanh(x), to about 2 ulp. For |x| < 1/4, (1 - e^-2x) / (1 + e^-2x) would cancel, so the odd Taylor
// series to degree 9 is used there (truncation error below 2^-26).
inline F16 tanh(F16 x) {
  const F16 size = magnitude_of(x), e = exp(size * splat(-2.0f)), square = x * x;
  const F16 large = (splat(1.0f) - e) / (splat(1.0f) + e);
  F16 p = splat(62.0f / 2835.0f);
  p = fma(p, square, splat(-17.0f / 315.0f));
  p = fma(p, square, splat(2.0f / 15.0f));
  p = fma(p, square, splat(-1.0f / 3.0f));
  const F16 small = fma(x * square, p, x);
  const U16 sign = bits_as<U16>(x) & 0x80000000u;
  return select(size < splat(0.25f), small, bits_as<F16>(bits_as<U16>(large) | sign));
}

inline F16 sigmoid_times(F16 x, F16 scaled) { return x / (splat(1.0f) + exp(-scaled)); }

// x Phi(x), by Abramowitz and Stegun 7.1.26; the error of Phi is below 2^-23.
inline F16 gelu(F16 x) {
  const F16 z = magnitude_of(x) * splat(0.70710678f);
  const F16 t = splat(1.0f) / fma(z, splat(0.3275911f), splat(1.0f));
  F16 p = splat(1.061405429f);
  p = fma(p, t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const F16 tail = (p * t) * (exp(-(z * z)) * splat(0.5f));  // Phi(-|x|)
  return x * select(x > F16{}, splat(1.0f) - tail, tail);
}

// x / 2 (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline F16 gelu_tanh(F16 x) {
  const F16 cubic = fma((x * x) * x, splat(0.044715f), x);
  return sigmoid_times(x, cubic * splat(1.5957691f));
}

// The activation of gpt-oss: inputs are clamped to 7, and the gate's sigmoid is steeper than
// SiLU's.
inline F16 clamped_swiglu(F16 gate, F16 up) {
  const F16 limit = splat(7.0f), g = min(gate, limit), u = max(min(up, limit), -limit);
  return sigmoid_times(g, g * splat(1.702f)) * (u + splat(1.0f));
}

inline F16 relu_squared(F16 x) {
  const F16 kept = max(x, F16{});
  return kept * kept;
}

// xIELU (arXiv 2411.13010). Near zero e^m - 1 - m would cancel, so the Taylor series to degree 7 is
// used there (truncation error below 2^-26).
inline F16 xielu(F16 x, const Xielu& curve) {
  const F16 m = min(x, splat(curve.limit));
  F16 p = splat(1.0f / 5040.0f);
  p = fma(p, m, splat(1.0f / 720.0f));
  p = fma(p, m, splat(1.0f / 120.0f));
  p = fma(p, m, splat(1.0f / 24.0f));
  p = fma(p, m, splat(1.0f / 6.0f));
  p = fma(p, m, splat(0.5f));
  const F16 large = (exp(m) - splat(1.0f)) - m;
  const F16 bend = select(m > splat(-0.25f), p * (m * m), large) + (m - x);
  const F16 linear = x * splat(curve.slope);
  const F16 below = fma(bend, splat(curve.negative), linear);
  return select(x > F16{}, fma(x * x, splat(curve.positive), linear), below);
}

// out = f(gate, up), computed in whole vectors. If `up` is null, f gets zeros for it.
template <class Combine>
inline void combine(const float* gate, const float* up, int64_t n, float* out, const Combine& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(out + i, f(load(gate + i), up != nullptr ? load(up + i) : F16{}));
  if (i == n) return;
  const F16 g = load_part(gate + i, n - i, 0.0f);
  const F16 u = up != nullptr ? load_part(up + i, n - i, 0.0f) : F16{};
  store_part(out + i, f(g, u), n - i);
}

void gelu_times(const float* gate, const float* up, int64_t n, float* out) {
  if (up == nullptr)
    combine(gate, up, n, out, [](F16 g, F16) { return gelu(g); });
  else
    combine(gate, up, n, out, [](F16 g, F16 u) { return gelu(g) * u; });
}

void gelu_tanh_times(const float* gate, const float* up, int64_t n, float* out) {
  if (up == nullptr)
    combine(gate, up, n, out, [](F16 g, F16) { return gelu_tanh(g); });
  else
    combine(gate, up, n, out, [](F16 g, F16 u) { return gelu_tanh(g) * u; });
}

void relu_squared_times(const float* gate, const float* up, int64_t n, float* out) {
  if (up == nullptr)
    combine(gate, up, n, out, [](F16 g, F16) { return relu_squared(g); });
  else
    combine(gate, up, n, out, [](F16 g, F16 u) { return relu_squared(g) * u; });
}

void xielu(const float* x, int64_t n, const Xielu& curve, float* out) {
  combine(x, nullptr, n, out, [&](F16 v, F16) { return xielu(v, curve); });
}

void clamped_swiglu(const float* gate, const float* up, int64_t n, float* out) {
  combine(gate, up, n, out, [](F16 g, F16 u) { return clamped_swiglu(g, u); });
}

void soft_cap(float* x, int64_t n, float factor, float cap) {
  const F16 scaled = splat(factor / cap), most = splat(cap);
  combine(x, nullptr, n, x, [&](F16 v, F16) { return tanh(v * scaled) * most; });
}

}  // namespace
}  // namespace specqd
