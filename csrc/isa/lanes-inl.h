// Sixteen virtual lanes. Every elementwise operation of the core is written once on these types, so
// that its order, and with it every bit, is the same on all instruction sets: the compiler lowers a
// 64-byte vector to one AVX-512 register, two of AVX2, or four of SSE2 or NEON.
//
// Included by the files under isa/ only; everything here has internal linkage.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specqd {
namespace {

constexpr int kLanes = 16;

using F16 = float __attribute__((vector_size(64)));
using I16 = int32_t __attribute__((vector_size(64)));
using U16 = uint32_t __attribute__((vector_size(64)));
using H16 = uint16_t __attribute__((vector_size(32)));
using D8 = double __attribute__((vector_size(64)));
using L8 = int64_t __attribute__((vector_size(64)));
using F8 = float __attribute__((vector_size(32)));

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class V>
inline V load_as(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <class V>
inline void store_as(void* to, V v) {
  std::memcpy(to, &v, sizeof(v));
}

inline F16 load(const float* from) { return load_as<F16>(from); }
inline void store(float* to, F16 v) { store_as(to, v); }
inline F16 splat(float value) { return value - F16{}; }
inline I16 splat_int(int32_t value) { return value - I16{}; }

inline F16 select(I16 mask, F16 yes, F16 no) {
  return bits_as<F16>((bits_as<I16>(yes) & mask) | (bits_as<I16>(no) & ~mask));
}
// a where a > b, else b: b also where either is NaN.
inline F16 max(F16 a, F16 b) { return select(a > b, a, b); }
inline F16 min(F16 a, F16 b) { return select(a < b, a, b); }

#if !defined(__FMA__) && !defined(__AVX512F__) && !defined(__FP_FAST_FMAF)
// fl32(a*b + c) without a fused instruction. The product of two fp32 is exact in fp64. The sum is
// rounded to odd there (Boldo and Melquiond 2008), after which rounding to fp32 is the only
// rounding.
inline F8 fma_by_odd_rounding(F8 a, F8 b, F8 c) {
  const D8 product = __builtin_convertvector(a, D8) * __builtin_convertvector(b, D8);
  const D8 addend = __builtin_convertvector(c, D8);
  const D8 sum = product + addend;
  const D8 from_addend = sum - product;
  const D8 error = (product - (sum - from_addend)) + (addend - from_addend);
  const L8 sum_bits = bits_as<L8>(sum);
  const L8 towards_zero = ((error < 0) ^ (sum < 0)) & 1;
  const L8 finite = (sum - sum) == 0;
  const L8 inexact = (error != 0) & finite & ((sum_bits & 1) == 0);
  // The neighbour towards the exact value has an odd last bit.
  const L8 odd = sum_bits + (1 - 2 * towards_zero);
  return __builtin_convertvector(bits_as<D8>((odd & inexact) | (sum_bits & ~inexact)), F8);
}
#endif

// a * b + c, rounded once.
inline F16 fma(F16 a, F16 b, F16 c) {
#if defined(__AVX512F__)
  return (F16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  struct Halves {
    F8 low, high;
  };
  const auto x = bits_as<Halves>(a), y = bits_as<Halves>(b), z = bits_as<Halves>(c);
#if defined(__FMA__)
  const Halves out{(F8)_mm256_fmadd_ps((__m256)x.low, (__m256)y.low, (__m256)z.low),
                   (F8)_mm256_fmadd_ps((__m256)x.high, (__m256)y.high, (__m256)z.high)};
#elif defined(__FP_FAST_FMAF)
  Halves out;
  for (int i = 0; i < 8; ++i) {
    out.low[i] = __builtin_fmaf(x.low[i], y.low[i], z.low[i]);
    out.high[i] = __builtin_fmaf(x.high[i], y.high[i], z.high[i]);
  }
#else
  const Halves out{fma_by_odd_rounding(x.low, y.low, z.low),
                   fma_by_odd_rounding(x.high, y.high, z.high)};
#endif
  return bits_as<F16>(out);
#endif
}

// fl32(a*b + c) where a and b hold BF16 values: their product is exact in fp32, and it needs only a
// plain double addition to be rounded once in the end (53 >= 2 * 24 + 2 bits, Figueroa 1995).
inline F16 fma_bf16(F16 a, F16 b, F16 c) {
#if defined(__AVX512F__) || defined(__FMA__) || defined(__FP_FAST_FMAF)
  return fma(a, b, c);
#else
  struct Halves {
    F8 low, high;
  };
  const auto x = bits_as<Halves>(a), y = bits_as<Halves>(b), z = bits_as<Halves>(c);
  const auto half = [](F8 p, F8 q, F8 r) {
    return __builtin_convertvector(__builtin_convertvector(p, D8) * __builtin_convertvector(q, D8) +
                                       __builtin_convertvector(r, D8),
                                   F8);
  };
  return bits_as<F16>(Halves{half(x.low, y.low, z.low), half(x.high, y.high, z.high)});
#endif
}

// Sums and maxima over the lanes, always folded in halves: 8, 4, 2, 1.
inline float sum_lanes(F16 v) {
  float lane[kLanes];
  store(lane, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] = lane[i] + lane[i + width];
  return lane[0];
}

inline float max_lanes(F16 v) {
  float lane[kLanes];
  store(lane, v);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
  return lane[0];
}

inline F16 load_bf16(const uint16_t* from) {
  return bits_as<F16>(__builtin_convertvector(load_as<H16>(from), U16) << 16);
}

// Rounds to BF16, nearest even; the result keeps the fp32 form. NaN stays NaN.
inline F16 round_to_bf16(F16 v) {
  const U16 bits = bits_as<U16>(v);
  const U16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  return select(v == v, bits_as<F16>(rounded), bits_as<F16>(bits | 0x00400000u));
}

// The upper halves of values that round_to_bf16 made.
inline void store_bf16(uint16_t* to, F16 rounded) {
  store_as(to, __builtin_convertvector(bits_as<U16>(rounded) >> 16, H16));
}

// The nearest integer, ties to even, for |v| < 2^22: as integers, and as the fp32 it rounds to.
inline F16 round_even(F16 v) {
  const F16 magic = splat(12582912.0f);  // 1.5 * 2^23
  return (v + magic) - magic;
}
inline I16 to_int(F16 integral) { return __builtin_convertvector(integral, I16); }
inline F16 to_float(I16 v) { return __builtin_convertvector(v, F16); }

// 2^n for -126 <= n <= 127.
inline F16 power_of_two(I16 n) { return bits_as<F16>((n + 127) << 23); }

// e^x to about 1 ulp; 0 below -87.3, +inf above 88.7. Range reduction by Cody and Waite; the
// polynomial is the Taylor series to degree 7 on |r| <= ln(2)/2 (truncation below 2^-26).
inline F16 exp(F16 x) {
  const F16 clamped = max(min(x, splat(89.0f)), splat(-88.0f));
  const F16 n = round_even(clamped * splat(1.44269504f));
  F16 r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  F16 p = splat(1.9841270e-4f);
  p = fma(p, r, splat(1.3888889e-3f));
  p = fma(p, r, splat(8.3333333e-3f));
  p = fma(p, r, splat(4.1666667e-2f));
  p = fma(p, r, splat(1.6666667e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  // Two factors, since n reaches 128.
  const I16 whole = to_int(n);
  const I16 half = whole >> 1;
  F16 value = (p * power_of_two(half)) * power_of_two(whole - half);
  value = select(x < splat(-87.3f), F16{}, value);
  return select(x == x, value, x);
}

}  // namespace
}  // namespace specqd
