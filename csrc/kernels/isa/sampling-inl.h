// Implements sampling_kernels.h. Elements are independent and all sums are sums of integers, so the
// order does not matter.
#pragma once

#include "kernels/isa/lanes-inl.h"
#include "kernels/isa/ops-inl.h"
#include "kernels/sampling_kernels.h"

namespace specqd {
namespace {
namespace sampling {

using W8 = Lanes<uint64_t, kLanes / 2>;

// Loads the vector at i; lanes from n on are -infinity.
inline F16 load_before(int64_t n, const float* from, int64_t i) {
  if (i + kLanes <= n) return load(from + i);
  float padded[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    padded[lane] = i + lane < n ? from[i + lane] : kMinusInfinity;
  return load(padded);
}

inline void store_before(int64_t n, float* to, int64_t i, F16 v) {
  if (i + kLanes <= n) return store(to + i, v);
  for (int lane = 0; i + lane < n; ++lane) to[i + lane] = v[lane];
}

// e^z for kLeastZ <= z <= 0, to about 1 ulp, like exp() of lanes-inl.h; unspecified for other z.
inline F16 exp_below(F16 z) {
  const F16 magic = splat(12582912.0f);  // 1.5 * 2^23: puts the integer into the low bits
  const F16 shifted = fma(z, splat(1.44269504f), magic);
  const F16 n = shifted - magic;
  F16 r = fma(n, splat(-0.693359375f), z);
  r = fma(n, splat(2.12194440e-4f), r);
  F16 p = splat(1.9841270e-4f);
  p = fma(p, r, splat(1.3888889e-3f));
  p = fma(p, r, splat(8.3333333e-3f));
  p = fma(p, r, splat(4.1666667e-2f));
  p = fma(p, r, splat(1.6666667e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return bits_as<F16>(bits_as<U16>(p) + (bits_as<U16>(shifted) << 23));
}

// Sums weights in [0, 1] exactly: the first 20 bits of each in high_, the next 20 in low_. fold()
// empties these 32-bit sums before they overflow.
class Mass {
 public:
  void add(F16 weight) {
    const F16 scaled = weight * splat(0x1p20f);
    const I16 whole = convert<I16>(scaled);
    const F16 rest = (scaled - convert<F16>(whole)) * splat(0x1p20f);
    high_ += bits_as<U16>(whole);
    low_ += bits_as<U16>(convert<I16>(rest));
  }
  // Must be called at least once per 2048 additions.
  void fold() {
    const W8 high = bits_as<W8>(high_), low = bits_as<W8>(low_);
    sum_ += (((high & 0xffffffffu) + (high >> 32)) << 20) + (low & 0xffffffffu) + (low >> 32);
    high_ = low_ = U16{};
  }
  uint64_t total() const {
    return specqd::fold(sum_, [](auto a, auto b) { return a + b; });
  }

 private:
  U16 high_{}, low_{};
  W8 sum_{};
};

// Calls step(i, vector) for each vector of values[0, n), and fold(first index) after each block.
template <class Step, class Fold>
inline void for_each_vector(const float* values, int64_t n, Step step, Fold fold) {
  for (int64_t block = 0; block < n; block += kMaximaBlock) {
    const int64_t end = block + kMaximaBlock < n ? block + kMaximaBlock : n;
    int64_t i = block;
    for (; i + kLanes <= end; i += kLanes) step(i, load(values + i));
    if (i < end) step(i, load_before(end, values, i));
    fold(block);
  }
}
constexpr auto kNoFold = [](int64_t) {};

void maxima(const float* logits, int64_t n, float* out) {
  F16 most = splat(kMinusInfinity);
  for_each_vector(
      logits, n, [&](int64_t, F16 v) { most = max(v, most); },
      [&](int64_t block) {
        store(out + block / kMaximaBlock * kLanes, most);
        most = splat(kMinusInfinity);
      });
}

uint64_t weigh(const float* logits, int64_t n, const Weighing& by, float* weights) {
  const F16 maximum = splat(by.maximum), factor = splat(by.inverse_temperature);
  const F16 least_logit = splat(by.least_logit), least_z = splat(by.least_z);
  const F16 largest = splat(kLargestLogit);
  Mass mass;
  for_each_vector(
      logits, n,
      [&](int64_t i, F16 logit) {
        const F16 z = (min(logit, largest) - maximum) * factor;
        const I16 kept = (logit >= least_logit) & (z >= least_z);
        F16 weight{};
        if (any(kept)) {
          weight = select(kept, exp_below(z), weight);
          mass.add(weight);
        }
        if (weights) store(weights + i, weight);
      },
      [&](int64_t) { mass.fold(); });
  if (weights)
    for (int64_t i = (n + kLanes - 1) / kLanes * kLanes; i % kNoiseGroup != 0; i += kLanes)
      store(weights + i, F16{});
  return mass.total();
}

uint64_t mass_from(const float* weights, int64_t n, float least) {
  const F16 bound = splat(least);
  Mass mass;
  for_each_vector(
      weights, n, [&](int64_t, F16 weight) { mass.add(select(weight >= bound, weight, F16{})); },
      [&](int64_t) { mass.fold(); });
  return mass.total();
}

void drop_below(float* weights, int64_t n, float least) {
  const F16 bound = splat(least);
  for_each_vector(
      weights, n,
      [&](int64_t i, F16 weight) {
        store_before(n, weights, i, select(weight >= bound, weight, F16{}));
      },
      kNoFold);
}

int64_t collect(const float* values, int64_t n, float least, float most, int32_t* indices) {
  const F16 low = splat(least), high = splat(most);
  int64_t count = 0;
  for_each_vector(
      values, n,
      [&](int64_t i, F16 value) {
        for (uint32_t bits = lane_bits((value >= low) & (value <= high)); bits; bits &= bits - 1)
          indices[count++] = static_cast<int32_t>(i) + __builtin_ctz(bits);
      },
      kNoFold);
  return count;
}

// The 64-bit products of the low half of each lane and m.
template <class V>
inline V multiply_low_halves(V v, uint32_t m) {
  if constexpr (kIsHalved<V>) {
    return {multiply_low_halves(v.low, m), multiply_low_halves(v.high, m)};
  } else {
#if defined(__AVX512F__)
    // The masked form avoids a warning of GCC 12 about its own header.
    return (V)_mm512_maskz_mul_epu32(0xff, (__m512i)v, _mm512_set1_epi64(m));
#elif defined(__AVX2__)
    return (V)_mm256_mul_epu32((__m256i)v, _mm256_set1_epi64x(m));
#elif defined(__x86_64__)
    return (V)_mm_mul_epu32((__m128i)v, _mm_set1_epi64x(m));
#elif defined(__aarch64__)
    return (V)vmull_u32(vmovn_u64((uint64x2_t)v), vdup_n_u32(m));
#else
    return (v & 0xffffffffu) * m;
#endif
  }
}

// Philox states, with a word in the low half of each lane. Multiplications ignore the high halves.
struct PhiloxStates {
  W8 word[4];

  void round(uint32_t key0, uint32_t key1) {
    const W8 a = multiply_low_halves(word[0], kPhiloxMultiplier[0]);
    const W8 b = multiply_low_halves(word[2], kPhiloxMultiplier[1]);
    word[0] = (b >> 32) ^ word[1] ^ key0;
    word[2] = (a >> 32) ^ word[3] ^ key1;
    word[1] = b;
    word[3] = a;
  }
};

// Computes the random words of the 64 tokens of a group. Lane l of words[j] is of token 16 * j + l.
inline void noise_words(int64_t group, const NoiseStream& noise, U16 words[4]) {
  const W8 counter = all<W8>(16 * static_cast<uint64_t>(group)) + 2 * lane_numbers<W8>();
  const W8 fixed[3] = {all<W8>(noise.counter[0]), all<W8>(noise.counter[1]),
                       all<W8>(noise.counter[2])};
  PhiloxStates even{{counter, fixed[0], fixed[1], fixed[2]}};
  PhiloxStates odd{{counter + 1, fixed[0], fixed[1], fixed[2]}};
  uint32_t key0 = noise.key[0], key1 = noise.key[1];
#pragma GCC unroll 10
  for (int i = 0; i < kPhiloxRounds; ++i) {
    even.round(key0, key1);
    odd.round(key0, key1);
    key0 += kPhiloxKeyStep[0];
    key1 += kPhiloxKeyStep[1];
  }
  for (int j = 0; j < 4; ++j)
    words[j] = bits_as<U16>((even.word[j] & 0xffffffffu) | (odd.word[j] << 32));
}

int64_t find_survivors(const float* weights, int64_t begin, int64_t end, const NoiseStream& noise,
                       float bound, int32_t* ids) {
  // Only the 24 leading bits of v are compared, in units of 2^-24; v is never below 2^-65.
  const F16 limit = splat(bound * 0x1p24f), least = splat(0x1p-65f * 0x1p24f);
  int64_t count = 0;
  for (int64_t at = begin; at < end; at += kNoiseGroup) {
    F16 most[4];
    for (int j = 0; j < 4; ++j) most[j] = load(weights + at + 16 * j) * limit;
    if (!any((most[0] >= least) | (most[1] >= least) | (most[2] >= least) | (most[3] >= least)))
      continue;
    U16 words[4];
    noise_words(at / kNoiseGroup, noise, words);
    uint64_t survives = 0;  // one bit per token
    for (int j = 0; j < 4; ++j)
      survives |= uint64_t{lane_bits(convert<F16>(bits_as<I16>(words[j] >> 8)) < most[j])}
                  << (16 * j);
    for (; survives; survives &= survives - 1)
      ids[count++] = static_cast<int32_t>(at) + __builtin_ctzll(survives);
  }
  return count;
}

void mask(const float* logits, int64_t n, const uint32_t* allowed, float* out) {
  const U16 bit = all<U16>(1) << lane_numbers<U16>();
  for_each_vector(
      logits, n,
      [&](int64_t i, F16 logit) {
        const I16 is_allowed = (all<U16>(allowed[i / 32] >> (i % 32)) & bit) != 0;
        store_before(n, out, i, select(is_allowed, logit, splat(kMinusInfinity)));
      },
      kNoFold);
}

void log_softmax(const float* logits, int64_t n, float maximum, float log_sum, float* out) {
  const F16 largest = splat(kLargestLogit), top = splat(maximum), sum = splat(log_sum);
  for_each_vector(
      logits, n,
      [&](int64_t i, F16 logit) {
        const F16 value = (min(logit, largest) - top) - sum;
        store_before(n, out, i, select(logit == logit, value, splat(kMinusInfinity)));
      },
      kNoFold);
}

constexpr SamplingKernels kKernels = {.maxima = maxima,
                                      .weigh = weigh,
                                      .mass_from = mass_from,
                                      .drop_below = drop_below,
                                      .collect = collect,
                                      .find_survivors = find_survivors,
                                      .mask = mask,
                                      .log_softmax = log_softmax};

}  // namespace sampling
}  // namespace
}  // namespace specqd
