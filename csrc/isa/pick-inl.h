// The loops of pick_kernels.h. Each element is computed by itself and every sum is of integers, so
// that, unlike elsewhere under isa/, the width of a vector does not matter: it is the machine's.
#pragma once

#include "isa/lanes-inl.h"
#include "isa/ops-inl.h"
#include "pick_kernels.h"

namespace specqd {
namespace {
namespace picking {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#else
constexpr int kWidth = 8;
#endif
using F = float __attribute__((vector_size(4 * kWidth)));
using I = int32_t __attribute__((vector_size(4 * kWidth)));
using U = uint32_t __attribute__((vector_size(4 * kWidth)));
using W = uint64_t __attribute__((vector_size(4 * kWidth)));

inline F all(float value) { return value - F{}; }
inline F load_wide(const float* from) { return load_as<F>(from); }

// The vector at i; past the end it is -infinity.
inline F load_wide(const float* from, int64_t i, int64_t n) {
  if (i + kWidth <= n) return load_wide(from + i);
  float padded[kWidth];
  for (int lane = 0; lane < kWidth; ++lane)
    padded[lane] = i + lane < n ? from[i + lane] : kMinusInfinity;
  return load_wide(padded);
}

inline void store_wide(float* to, int64_t i, int64_t n, F v) {
  if (i + kWidth <= n) return store_as(to + i, v);
  for (int lane = 0; i + lane < n; ++lane) to[i + lane] = v[lane];
}

// A bit a lane, of a comparison.
inline uint32_t lane_bits(I mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kWidth; ++lane) bits |= (mask[lane] & 1u) << lane;
  return bits;
#endif
}

inline bool any(I mask) {
#if defined(__AVX2__)
  return lane_bits(mask) != 0;
#else
  const W v = bits_as<W>(mask);
  return ((v[0] | v[1]) | (v[2] | v[3])) != 0;
#endif
}

inline F multiply_add(F a, F b, F c) {
#if defined(__AVX512F__)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  F out;
  for (int i = 0; i < kWidth; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return out;
#else
  return fma_by_odd_rounding(a, b, c);
#endif
}

// e^z for kLeastZ <= z <= 0, to about 1 ulp, as exp() of lanes-inl.h. Elsewhere, anything.
inline F exp_below(F z) {
  const F magic = all(12582912.0f);  // 1.5 * 2^23: rounds to an integer, in the low bits
  const F shifted = multiply_add(z, all(1.44269504f), magic);
  const F n = shifted - magic;
  F r = multiply_add(n, all(-0.693359375f), z);
  r = multiply_add(n, all(2.12194440e-4f), r);
  F p = all(1.9841270e-4f);
  p = multiply_add(p, r, all(1.3888889e-3f));
  p = multiply_add(p, r, all(8.3333333e-3f));
  p = multiply_add(p, r, all(4.1666667e-2f));
  p = multiply_add(p, r, all(1.6666667e-1f));
  p = multiply_add(p, r, all(0.5f));
  p = multiply_add(p, r, all(1.0f));
  p = multiply_add(p, r, all(1.0f));
  return bits_as<F>(bits_as<U>(p) + (bits_as<U>(shifted) << 23));
}

// The mass of weights in [0, 1]: 20 bits of each in `high`, 20 more in `low`, both as 32-bit sums
// that `fold` empties before they overflow.
class Mass {
 public:
  void add(F weight) {
    const F scaled = weight * all(0x1p20f);
    const I whole = __builtin_convertvector(scaled, I);
    const F rest = (scaled - __builtin_convertvector(whole, F)) * all(0x1p20f);
    high_ += bits_as<U>(whole);
    low_ += bits_as<U>(__builtin_convertvector(rest, I));
  }
  // At least once every 2048 additions.
  void fold() {
    const W high = bits_as<W>(high_), low = bits_as<W>(low_);
    sum_ += (((high & 0xffffffffu) + (high >> 32)) << 20) + (low & 0xffffffffu) + (low >> 32);
    high_ = low_ = U{};
  }
  uint64_t total() const {
    uint64_t total = 0;
    for (int i = 0; i < kWidth / 2; ++i) total += sum_[i];
    return total;
  }

 private:
  U high_{}, low_{};
  W sum_{};
};

// Calls step(i, vector) for the vectors of values[0..n), and `fold` after each block.
template <class Step, class Fold>
inline void for_each_vector(const float* values, int64_t n, Step step, Fold fold) {
  for (int64_t block = 0; block < n; block += kMaximaBlock) {
    const int64_t end = block + kMaximaBlock < n ? block + kMaximaBlock : n;
    int64_t i = block;
    for (; i + kWidth <= end; i += kWidth) step(i, load_wide(values + i));
    if (i < end) step(i, load_wide(values, i, end));
    fold(block);
  }
}
constexpr auto kNoFold = [](int64_t) {};

void maxima(const float* logits, int64_t n, float* out) {
  F top[2] = {all(kMinusInfinity), all(kMinusInfinity)};
  for_each_vector(
      logits, n,
      [&](int64_t i, F v) {
        F& most = top[i / 8 % 2];
        most = v > most ? v : most;
      },
      [&](int64_t block) {
        float* to = out + block / kMaximaBlock * 16;
        store_as(to, top[0]);
        if (kWidth == 8) store_as(to + 8, top[1]);
        top[0] = top[1] = all(kMinusInfinity);
      });
}

uint64_t weigh(const float* logits, int64_t n, const Weighing& by, float* weights) {
  const F maximum = all(by.maximum), factor = all(by.inverse_temperature);
  const F least_logit = all(by.least_logit), least_z = all(by.least_z);
  const F largest = all(kLargestLogit);
  Mass mass;
  for_each_vector(
      logits, n,
      [&](int64_t i, F logit) {
        const F z = ((logit < largest ? logit : largest) - maximum) * factor;
        const I kept = (logit >= least_logit) & (z >= least_z);
        F weight{};
        if (any(kept)) {
          weight = kept ? exp_below(z) : weight;
          mass.add(weight);
        }
        if (weights) store_as(weights + i, weight);
      },
      [&](int64_t) { mass.fold(); });
  if (weights)
    for (int64_t i = (n + kWidth - 1) / kWidth * kWidth; i % kNoiseGroup != 0; i += kWidth)
      store_as(weights + i, F{});
  return mass.total();
}

uint64_t mass_from(const float* weights, int64_t n, float least) {
  const F bound = all(least);
  Mass mass;
  for_each_vector(
      weights, n, [&](int64_t, F weight) { mass.add(weight >= bound ? weight : F{}); },
      [&](int64_t) { mass.fold(); });
  return mass.total();
}

void drop_below(float* weights, int64_t n, float least) {
  const F bound = all(least);
  for_each_vector(
      weights, n,
      [&](int64_t i, F weight) { store_wide(weights, i, n, weight >= bound ? weight : F{}); },
      kNoFold);
}

int64_t collect(const float* values, int64_t n, float least, float most, int32_t* indices) {
  const F low = all(least), high = all(most);
  int64_t count = 0;
  for_each_vector(
      values, n,
      [&](int64_t i, F value) {
        for (uint32_t bits = lane_bits((value >= low) & (value <= high)); bits; bits &= bits - 1)
          indices[count++] = static_cast<int32_t>(i) + __builtin_ctz(bits);
      },
      kNoFold);
  return count;
}

// The low halves of the 64-bit lanes times m, in full.
inline W multiply_low_halves(W v, uint32_t m) {
#if defined(__AVX512F__)
  // With a mask, as GCC 12 warns about its own header without one.
  return (W)_mm512_maskz_mul_epu32(0xff, (__m512i)v, _mm512_set1_epi64(m));
#elif defined(__AVX2__)
  return (W)_mm256_mul_epu32((__m256i)v, _mm256_set1_epi64x(m));
#else
  return (v & 0xffffffffu) * m;
#endif
}

// Philox states, a word in the low half of each lane. What stands in the high halves is of no
// account: the multiplication does not read it.
struct PhiloxStates {
  W word[4];

  void round(uint32_t key0, uint32_t key1) {
    const W a = multiply_low_halves(word[0], kPhiloxMultiplier[0]);
    const W b = multiply_low_halves(word[2], kPhiloxMultiplier[1]);
    word[0] = (b >> 32) ^ word[1] ^ uint64_t { key0 };
    word[2] = (a >> 32) ^ word[3] ^ uint64_t { key1 };
    word[1] = b;
    word[3] = a;
  }
};

// Random words of 4 * kWidth tokens: lane l of words[j] is that of token 64 * group + 16 * j +
// first + l.
inline void noise_words(int64_t group, int first, const NoiseStream& noise, U words[4]) {
  W counter;
  for (int i = 0; i < kWidth / 2; ++i)
    counter[i] = static_cast<uint64_t>(16 * group + first + 2 * i);
  const W zero{};
  const W fixed[3] = {zero + uint64_t{noise.counter[0]}, zero + uint64_t{noise.counter[1]},
                      zero + uint64_t{noise.counter[2]}};
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
    words[j] = bits_as<U>((even.word[j] & 0xffffffffu) | (odd.word[j] << 32));
}

int64_t survivors(const float* weights, int64_t begin, int64_t end, const NoiseStream& noise,
                  float bound, int32_t* ids) {
  // v is compared in units of 2^-24, by its 24 leading bits; it is never below 2^-65.
  const F limit = all(bound * 0x1p24f), least = all(0x1p-65f * 0x1p24f);
  int64_t count = 0;
  for (int64_t at = begin; at < end; at += kNoiseGroup) {
    uint64_t survives = 0;  // a bit a token
    for (int first = 0; first < 16; first += kWidth) {
      F most[4];
      for (int j = 0; j < 4; ++j) most[j] = load_wide(weights + at + 16 * j + first) * limit;
      if (!any((most[0] >= least) | (most[1] >= least) | (most[2] >= least) | (most[3] >= least)))
        continue;
      U words[4];
      noise_words(at / kNoiseGroup, first, noise, words);
      I is_below[4];
      for (int j = 0; j < 4; ++j)
        is_below[j] = __builtin_convertvector(bits_as<I>(words[j] >> 8), F) < most[j];
      if (!any((is_below[0] | is_below[1]) | (is_below[2] | is_below[3]))) continue;
      for (int j = 0; j < 4; ++j) survives |= uint64_t{lane_bits(is_below[j])} << (16 * j + first);
    }
    for (; survives; survives &= survives - 1)
      ids[count++] = static_cast<int32_t>(at) + __builtin_ctzll(survives);
  }
  return count;
}

void mask(const float* logits, int64_t n, const uint32_t* allowed, float* out) {
  U bit;
  for (int i = 0; i < kWidth; ++i) bit[i] = 1u << i;
  for_each_vector(
      logits, n,
      [&](int64_t i, F logit) {
        const I is_allowed = ((U{} + (allowed[i / 32] >> (i % 32))) & bit) != 0;
        store_wide(out, i, n, is_allowed ? logit : all(kMinusInfinity));
      },
      kNoFold);
}

void log_softmax(const float* logits, int64_t n, float maximum, float log_sum, float* out) {
  const F largest = all(kLargestLogit), top = all(maximum), sum = all(log_sum);
  for_each_vector(
      logits, n,
      [&](int64_t i, F logit) {
        const F value = ((logit < largest ? logit : largest) - top) - sum;
        store_wide(out, i, n, logit == logit ? value : all(kMinusInfinity));
      },
      kNoFold);
}

constexpr PickKernels kKernels = {.maxima = maxima,
                                  .weigh = weigh,
                                  .mass_from = mass_from,
                                  .drop_below = drop_below,
                                  .collect = collect,
                                  .survivors = survivors,
                                  .mask = mask,
                                  .log_softmax = log_softmax};

}  // namespace picking
}  // namespace
}  // namespace specqd
