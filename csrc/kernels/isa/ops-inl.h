// Elementwise operations and reductions in the fixed order of sixteen lanes. The end of a row is
// padded to a whole vector, so the order does not depend on where a row ends in memory.
#pragma once

#include "kernels/isa/lanes-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

inline F16 load_part(const float* from, int64_t count, float fill) {
  F16 v = splat(fill);
  std::memcpy(&v, from, static_cast<size_t>(count) * sizeof(float));
  return v;
}

inline void store_part(float* to, F16 v, int64_t count) {
  std::memcpy(to, &v, static_cast<size_t>(count) * sizeof(float));
}

inline F16 load_bf16_part(const uint16_t* from, int64_t count) {
  uint16_t padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<size_t>(count) * sizeof(uint16_t));
  return load_bf16(padded);
}

inline void store_bf16_part(uint16_t* to, F16 rounded, int64_t count) {
  uint16_t padded[kLanes];
  store_bf16(padded, rounded);
  std::memcpy(to, padded, static_cast<size_t>(count) * sizeof(uint16_t));
}

void add_products(const float* x, int64_t rows, int64_t stride, int64_t count, float* sums,
                  int64_t sums_stride) {
  constexpr int64_t kHigh = 4, kWide = 2 * kLanes;
  for (int64_t i = 0; i < count; i += kHigh)
    for (int64_t j = i / kWide * kWide; j < count; j += kWide) {
      F16 left[kHigh], right[kHigh];
      for (int64_t at = 0; at < kHigh; ++at) {
        left[at] = load(sums + (i + at) * sums_stride + j);
        right[at] = load(sums + (i + at) * sums_stride + j + kLanes);
      }
      for (int64_t row = 0; row < rows; ++row) {
        const float* const inputs = x + row * stride;
        const F16 first = load(inputs + j), second = load(inputs + j + kLanes);
        for (int64_t at = 0; at < kHigh; ++at) {
          const F16 other = splat(inputs[i + at]);
          left[at] = left[at] + other * first;
          right[at] = right[at] + other * second;
        }
      }
      for (int64_t at = 0; at < kHigh; ++at) {
        store(sums + (i + at) * sums_stride + j, left[at]);
        store(sums + (i + at) * sums_stride + j + kLanes, right[at]);
      }
    }
}

void rms_norm(const float* x, const uint16_t* weight, int64_t n, float epsilon, float offset,
              float* out) {
  const int64_t whole = n / kLanes * kLanes;
  const F16 plus = splat(offset);
  F16 squares{};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (whole < n) {
    const F16 v = load_part(x + whole, n - whole, 0.0f);
    squares = fma(v, v, squares);
  }
  const float mean = sum_lanes(squares) / static_cast<float>(n);
  const F16 factor = splat(1.0f / __builtin_sqrtf(mean + epsilon));
  for (int64_t i = 0; i < whole; i += kLanes)
    store(out + i, (load(x + i) * factor) * (load_bf16(weight + i) + plus));
  if (whole < n) {
    const int64_t rest = n - whole;
    const F16 v = load_part(x + whole, rest, 0.0f) * factor;
    store_part(out + whole, v * (load_bf16_part(weight + whole, rest) + plus), rest);
  }
}

// Sums f(x) over a row; padding adds nothing.
template <class Function>
inline float sum_over(const float* x, int64_t n, const Function& f) {
  const int64_t whole = n / kLanes * kLanes;
  F16 sum{};
  for (int64_t i = 0; i < whole; i += kLanes) sum = sum + f(load(x + i));
  if (whole < n) {
    const I16 is_real = lane_numbers<I16>() < static_cast<int32_t>(n - whole);
    sum = sum + select(is_real, f(load_part(x + whole, n - whole, 0.0f)), F16{});
  }
  return sum_lanes(sum);
}

void layer_norm(const float* x, const uint16_t* weight, const uint16_t* bias, int64_t n,
                float epsilon, float* out) {
  const float count = static_cast<float>(n);
  const F16 mean = splat(sum_over(x, n, [](F16 v) { return v; }) / count);
  const float variance = sum_over(x, n, [&](F16 v) { return (v - mean) * (v - mean); }) / count;
  const F16 factor = splat(1.0f / __builtin_sqrtf(variance + epsilon));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F16 scaled = ((load(x + i) - mean) * factor) * load_bf16(weight + i);
    store(out + i, bias != nullptr ? scaled + load_bf16(bias + i) : scaled);
  }
  if (i == n) return;
  const int64_t rest = n - i;
  const F16 v = (load_part(x + i, rest, 0.0f) - mean) * factor;
  const F16 scaled = v * load_bf16_part(weight + i, rest);
  store_part(out + i, bias != nullptr ? scaled + load_bf16_part(bias + i, rest) : scaled, rest);
}

void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
}

void add_bf16(float* x, const uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) + load_bf16(y + i));
  if (i < n) store_part(x + i, load_part(x + i, n - i, 0.0f) + load_bf16_part(y + i, n - i), n - i);
}

void scale(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * factor;
}

void panel_maxima(const float* x, int64_t panels, float* out) {
  static_assert(kPanel == kLanes);
  for (int64_t panel = 0; panel < panels; ++panel) out[panel] = max_lanes(load(x + panel * kPanel));
}

// silu(g) * u = g / (1 + e^-g) * u
inline F16 silu_times(F16 gate, F16 up) { return (gate / (splat(1.0f) + exp(-gate))) * up; }

void silu_times(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, silu_times(load(gate + i), load(up + i)));
  if (i < n) {
    const int64_t rest = n - i;
    const F16 g = load_part(gate + i, rest, 0.0f), u = load_part(up + i, rest, 0.0f);
    store_part(out + i, silu_times(g, u), rest);
  }
}

void rotate(float* x, const float* cosine, const float* sine, int64_t half) {
  float* const y = x + half;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F16 a = load(x + i), b = load(y + i), c = load(cosine + i), s = load(sine + i);
    store(x + i, fma(a, c, -(b * s)));
    store(y + i, fma(b, c, a * s));
  }
  if (i < half) {
    const int64_t rest = half - i;
    const F16 a = load_part(x + i, rest, 0.0f), b = load_part(y + i, rest, 0.0f);
    const F16 c = load_part(cosine + i, rest, 0.0f), s = load_part(sine + i, rest, 0.0f);
    store_part(x + i, fma(a, c, -(b * s)), rest);
    store_part(y + i, fma(b, c, a * s), rest);
  }
}

void round_bf16(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(out + i, round_to_bf16(load(x + i)));
  if (i < n) store_bf16_part(out + i, round_to_bf16(load_part(x + i, n - i, 0.0f)), n - i);
}

// NaN becomes zero; magnitudes above BF16's largest finite value become that value.
inline F16 make_finite(F16 v) {
  const I16 bits = bits_as<I16>(v), magnitude = bits & 0x7fffffff;
  const I16 bounded = min(magnitude, splat_int(0x7f7f0000)) | (bits ^ magnitude);
  return bits_as<F16>(select(magnitude > 0x7f800000, I16{}, bounded));
}

void round_bf16_finite(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(out + i, round_to_bf16(make_finite(load(x + i))));
  if (i < n)
    store_bf16_part(out + i, round_to_bf16(make_finite(load_part(x + i, n - i, 0.0f))), n - i);
}

uint64_t read_bytes(const void* data, size_t bytes) {
  using W = Lanes<uint64_t, 8>;
  const char* at = static_cast<const char*>(data);
  W sums[4] = {};
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    __builtin_prefetch(at + i + 4096);
    __builtin_prefetch(at + i + 4160);
    __builtin_prefetch(at + i + 4224);
    __builtin_prefetch(at + i + 4288);
    for (int j = 0; j < 4; ++j) sums[j] += load_as<W>(at + i + 64 * j);
  }
  const W total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return fold(total, [](auto a, auto b) { return a + b; });
}

}  // namespace
}  // namespace specqd
