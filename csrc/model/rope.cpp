#include "model/rope.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/float_mode.h"
#include "kernels/scalar_math.h"

namespace specqd {
namespace {

constexpr double kTwoPi = 2.0 * scalar::kPi;

// theta^(2i / dims) in fp32, with the exponent in fp32.
float wavelength_over_two_pi(const RopeSpec& spec, size_t i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(spec.dims);
  const float theta = static_cast<float>(spec.theta);
  return static_cast<float>(scalar::pow(theta, exponent));
}

// Llama 3.1: low frequencies are divided by `factor`, high ones are kept, and those in between are
// blended. Everything is in fp32. As in torch, a scalar divided by a tensor is the scalar times a
// reciprocal.
float scale_llama3(const RopeSpec& spec, float inv_freq) {
  const float factor = static_cast<float>(spec.factor);
  const float wavelength = (1.0f / inv_freq) * static_cast<float>(kTwoPi);
  const float longest = static_cast<float>(spec.original_max_positions / spec.low_freq_factor);
  const float shortest = static_cast<float>(spec.original_max_positions / spec.high_freq_factor);
  if (wavelength > longest) return inv_freq / factor;
  if (wavelength < shortest) return inv_freq;
  const float rotations = (1.0f / wavelength) * static_cast<float>(spec.original_max_positions);
  const float smooth = (rotations - static_cast<float>(spec.low_freq_factor)) /
                       static_cast<float>(spec.high_freq_factor - spec.low_freq_factor);
  return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

// YaRN blends between two dimensions (arXiv 2309.00071, section 3.2): those whose waves make
// `beta_fast` and `beta_slow` rotations within the original context.
struct YarnRange {
  double low;
  double high;
};

YarnRange yarn_range(const RopeSpec& spec) {
  const auto dimension = [&](double rotations) {
    return spec.dims * scalar::log(spec.original_max_positions / (rotations * kTwoPi)) /
           (2.0 * scalar::log(spec.theta));
  };
  double low = dimension(spec.beta_fast);
  double high = dimension(spec.beta_slow);
  if (spec.truncate) {
    low = scalar::floor(low);
    high = scalar::ceil(high);
  }
  return {std::max(low, 0.0), std::min(high, spec.dims - 1.0)};
}

float scale_yarn(const RopeSpec& spec, YarnRange range, size_t i, float power) {
  const double width = range.high == range.low ? 0.001 : range.high - range.low;
  const float ramp =
      (static_cast<float>(i) - static_cast<float>(range.low)) / static_cast<float>(width);
  const float extrapolated = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
  const float stretched = 1.0f / (static_cast<float>(spec.factor) * power);
  return stretched * (1.0f - extrapolated) + (1.0f / power) * extrapolated;
}

double yarn_attention_factor(const RopeSpec& spec) {
  if (spec.attention_factor > 0.0) return spec.attention_factor;
  const auto scale = [&](double mscale) {
    return spec.factor <= 1.0 ? 1.0 : 0.1 * mscale * scalar::log(spec.factor) + 1.0;
  };
  const bool is_given = spec.mscale != 0.0 && spec.mscale_all_dim != 0.0;
  return is_given ? scale(spec.mscale) / scale(spec.mscale_all_dim) : scale(1.0);
}

// LongRoPE (arXiv 2402.13753): the factor follows from the growth of the context, as in
// transformers.
double long_attention_factor(const RopeSpec& spec) {
  if (spec.attention_factor > 0.0) return spec.attention_factor;
  if (spec.factor <= 1.0) return 1.0;
  const double ratio = scalar::log(spec.factor) / scalar::log(spec.original_max_positions);
  return __builtin_sqrt(1.0 + ratio);
}

}  // namespace

float rope_inverse_frequencies(const RopeSpec& spec, std::span<float> inv_freq) {
  if (spec.kind == RopeKind::kLong && spec.factors.size() != inv_freq.size())
    throw std::invalid_argument("longrope needs dims / 2 factors");
  const FlushSubnormals mode;
  const YarnRange range = spec.kind == RopeKind::kYarn ? yarn_range(spec) : YarnRange{};
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float power = wavelength_over_two_pi(spec, i);
    switch (spec.kind) {
      case RopeKind::kDefault:
        inv_freq[i] = 1.0f / power;
        break;
      case RopeKind::kLinear:
        inv_freq[i] = 1.0f / power / static_cast<float>(spec.factor);
        break;
      case RopeKind::kLlama3:
        inv_freq[i] = scale_llama3(spec, 1.0f / power);
        break;
      case RopeKind::kYarn:
        inv_freq[i] = scale_yarn(spec, range, i, power);
        break;
      case RopeKind::kLong:
        inv_freq[i] = 1.0f / (spec.factors[i] * power);
        break;
      case RopeKind::kProportional:
        inv_freq[i] = static_cast<int>(i) < spec.turning_pairs
                          ? 1.0f / power / static_cast<float>(spec.factor)
                          : 0.0f;
        break;
    }
  }
  if (spec.kind == RopeKind::kYarn) return static_cast<float>(yarn_attention_factor(spec));
  if (spec.kind == RopeKind::kLong) return static_cast<float>(long_attention_factor(spec));
  return 1.0f;
}

void rope_tables(std::span<const float> inv_freq, float attention_factor, int64_t first,
                 int64_t count, float* cos, float* sin) {
  const FlushSubnormals mode;
  for (int64_t p = 0; p < count; ++p) {
    const float position = static_cast<float>(first + p);
    for (const float frequency : inv_freq) {
      const float angle = position * frequency;
      const scalar::SinCos exact = scalar::sincos(angle);
      *cos++ = static_cast<float>(exact.cos * attention_factor);
      *sin++ = static_cast<float>(exact.sin * attention_factor);
    }
  }
}

float rope_query_scale(const RopeSpec& spec, int64_t position) {
  if (spec.query_growth == 0.0) return 1.0f;
  const double lengths = static_cast<double>(position) / spec.original_max_positions;
  return static_cast<float>(1.0 + spec.query_growth * scalar::log(1.0 + scalar::floor(lengths)));
}

}  // namespace specqd
