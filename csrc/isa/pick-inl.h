// The loops of pick_kernels.h on sixteen lanes.
#pragma once

#include "isa/lanes-inl.h"
#include "isa/ops-inl.h"
#include "pick_kernels.h"

namespace specqd {
namespace {

using W8 = uint64_t __attribute__((vector_size(64)));

inline bool any(I16 mask) {
  const W8 v = bits_as<W8>(mask);
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)v, (__m512i)v) != 0;
#else
  return ((v[0] | v[1]) | (v[2] | v[3]) | (v[4] | v[5]) | (v[6] | v[7])) != 0;
#endif
}

// Sixteen logits from i on; those past the end are -infinity.
inline F16 load_logits(const float* from, int64_t i, int64_t n) {
  return i + kLanes <= n ? load(from + i) : load_part(from + i, n - i, kMinusInfinity);
}

inline void store_logits(float* to, int64_t i, int64_t n, F16 v) {
  if (i + kLanes <= n)
    store(to + i, v);
  else
    store_part(to + i, v, n - i);
}

void maxima(const float* logits, int64_t n, float* out) {
  for (int64_t block = 0; block < n; block += kMaximaBlock, out += kLanes) {
    const int64_t end = block + kMaximaBlock < n ? block + kMaximaBlock : n;
    F16 top = splat(kMinusInfinity);
    for (int64_t i = block; i < end; i += kLanes) top = max(load_logits(logits, i, end), top);
    store(out, top);
  }
}

// The mass of many weights in [0, 1]: 20 bits of each in `high`, 20 more in `low`, both as 32-bit
// sums that `fold` empties before they overflow.
class Mass {
 public:
  void add(F16 weight) {
    const F16 scaled = weight * splat(0x1p20f);
    const I16 whole = to_int(scaled);
    high_ += bits_as<U16>(whole);
    low_ += bits_as<U16>(to_int((scaled - to_float(whole)) * splat(0x1p20f)));
  }
  // At least once every 2048 additions.
  void fold() {
    const W8 low_half = W8{} + 0xffffffffu;
    const W8 high = bits_as<W8>(high_), low = bits_as<W8>(low_);
    sum_ += (((high & low_half) + (high >> 32)) << 20) + (low & low_half) + (low >> 32);
    high_ = low_ = U16{};
  }
  uint64_t total() const {
    uint64_t total = 0;
    for (int i = 0; i < 8; ++i) total += sum_[i];
    return total;
  }

 private:
  U16 high_{}, low_{};
  W8 sum_{};
};

inline F16 weigh(F16 logits, const Weighing& by) {
  const F16 bounded = min(logits, splat(kLargestLogit));
  const F16 z = (bounded - splat(by.maximum)) * splat(by.inverse_temperature);
  const I16 kept = (logits >= splat(by.least_logit)) & (z >= splat(by.least_z));
  if (!any(kept)) return F16{};
  return select(kept, exp(z), F16{});
}

uint64_t weigh(const float* logits, int64_t n, const Weighing& by, float* weights) {
  Mass mass;
  for (int64_t block = 0; block < n; block += kMaximaBlock) {
    const int64_t end = block + kMaximaBlock < n ? block + kMaximaBlock : n;
    for (int64_t i = block; i < end; i += kLanes) {
      const F16 weight = weigh(load_logits(logits, i, end), by);
      if (weights) store(weights + i, weight);
      mass.add(weight);
    }
    mass.fold();
  }
  if (weights)
    for (int64_t i = (n + kLanes - 1) / kLanes * kLanes; i % kNoiseGroup != 0; i += kLanes)
      store(weights + i, F16{});
  return mass.total();
}

int64_t collect(const float* values, int64_t n, float least, int32_t* indices) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const I16 is_in = load_logits(values, i, n) >= splat(least);
    if (!any(is_in)) continue;
    for (int lane = 0; lane < kLanes; ++lane) {
      indices[count] = static_cast<int32_t>(i) + lane;
      count -= is_in[lane];  // true is -1
    }
  }
  return count;
}

// The low halves of eight 64-bit lanes times m, in full.
inline W8 multiply_low_halves(W8 v, uint32_t m) {
#if defined(__AVX512F__)
  // With a mask, as GCC 12 warns about its own header without one.
  return (W8)_mm512_maskz_mul_epu32(0xff, (__m512i)v, _mm512_set1_epi64(m));
#elif defined(__AVX2__)
  struct Halves {
    __m256i low, high;
  };
  const auto x = bits_as<Halves>(v);
  const __m256i y = _mm256_set1_epi64x(m);
  return bits_as<W8>(Halves{_mm256_mul_epu32(x.low, y), _mm256_mul_epu32(x.high, y)});
#elif defined(__SSE2__)
  struct Quarters {
    __m128i part[4];
  };
  const auto x = bits_as<Quarters>(v);
  const __m128i y = _mm_set1_epi64x(m);
  return bits_as<W8>(Quarters{{_mm_mul_epu32(x.part[0], y), _mm_mul_epu32(x.part[1], y),
                               _mm_mul_epu32(x.part[2], y), _mm_mul_epu32(x.part[3], y)}});
#else
  return (v & 0xffffffffu) * m;
#endif
}

// Eight Philox states, a word in the low half of each lane. What stands in the high halves is of no
// account: the multiplication does not read it.
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

// The random words of 64 tokens: words[j][l] is that of token 64 * group + 16 * j + l.
inline void noise_words(int64_t group, const NoiseStream& noise, U16 words[4]) {
  const W8 lanes = {0, 2, 4, 6, 8, 10, 12, 14};
  const W8 first = lanes + static_cast<uint64_t>(16 * group);
  const W8 zero{};
  const W8 fixed[3] = {zero + noise.counter[0], zero + noise.counter[1], zero + noise.counter[2]};
  PhiloxStates even{{first, fixed[0], fixed[1], fixed[2]}};
  PhiloxStates odd{{first + 1, fixed[0], fixed[1], fixed[2]}};
  uint32_t key0 = noise.key[0], key1 = noise.key[1];
  for (int i = 0; i < kPhiloxRounds; ++i) {
    even.round(key0, key1);
    odd.round(key0, key1);
    key0 += kPhiloxKeyStep[0];
    key1 += kPhiloxKeyStep[1];
  }
  for (int j = 0; j < 4; ++j)
    words[j] = bits_as<U16>((even.word[j] & 0xffffffffu) | (odd.word[j] << 32));
}

int64_t survivors(const float* weights, int64_t begin, int64_t end, const NoiseStream& noise,
                  float bound, int32_t* ids) {
  // v is compared in units of 2^-24, by its 24 leading bits; it is never below 2^-65.
  const F16 limit = splat(bound * 0x1p24f);
  const F16 least = splat(0x1p-65f * 0x1p24f);
  int64_t count = 0;
  for (int64_t at = begin; at < end; at += kNoiseGroup) {
    F16 most[4];
    for (int j = 0; j < 4; ++j) most[j] = load(weights + at + 16 * j) * limit;
    if (!any(max(max(most[0], most[1]), max(most[2], most[3])) >= least)) continue;
    U16 words[4];
    noise_words(at / kNoiseGroup, noise, words);
    I16 survives[4];
    for (int j = 0; j < 4; ++j) survives[j] = to_float(bits_as<I16>(words[j] >> 8)) < most[j];
    if (!any((survives[0] | survives[1]) | (survives[2] | survives[3]))) continue;
    for (int i = 0; i < kNoiseGroup; ++i)
      if (survives[i / kLanes][i % kLanes]) ids[count++] = static_cast<int32_t>(at) + i;
  }
  return count;
}

void mask_logits(const float* logits, int64_t n, const uint32_t* mask, float* out) {
  U16 bit;
  for (int i = 0; i < kLanes; ++i) bit[i] = 1u << i;
  for (int64_t i = 0; i < n; i += kLanes) {
    const uint32_t allowed = mask[i / 32] >> (i % 32);
    const I16 is_allowed = ((U16{} + allowed) & bit) != 0;
    const F16 masked = select(is_allowed, load_logits(logits, i, n), splat(kMinusInfinity));
    store_logits(out, i, n, masked);
  }
}

void log_softmax(const float* logits, int64_t n, float maximum, float log_sum, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const F16 v = load_logits(logits, i, n);
    const F16 value = (min(v, splat(kLargestLogit)) - splat(maximum)) - splat(log_sum);
    store_logits(out, i, n, select(v == v, value, splat(kMinusInfinity)));
  }
}

constexpr PickKernels kPickKernels = {.maxima = maxima,
                                      .weigh = weigh,
                                      .collect = collect,
                                      .survivors = survivors,
                                      .mask = mask_logits,
                                      .log_softmax = log_softmax};

}  // namespace
}  // namespace specqd
