// Sixteen virtual lanes. Every elementwise operation of the core is written once for these types,
// so its order, and therefore every bit, is the same on all instruction sets.
//
// Only files under isa/ include this; everything here has internal linkage.
#pragma once

#include "kernels/isa/vector-inl.h"

namespace specqd {
namespace {

constexpr int kLanes = 16;

using F16 = Lanes<float, kLanes>;
using I16 = Lanes<int32_t, kLanes>;
using U16 = Lanes<uint32_t, kLanes>;
using H16 = Lanes<uint16_t, kLanes>;

inline F16 load(const float* from) { return load_as<F16>(from); }
inline void store(float* to, F16 v) { store_as(to, v); }
inline F16 splat(float value) { return all<F16>(value); }
inline I16 splat_int(int32_t value) { return all<I16>(value); }

// Returns a if a > b, else b; so b if either is NaN. The compiler may use the machine's own
// maximum, which may return a subnormal as zero or unchanged.
template <class V>
inline V max(V a, V b) {
  return select(a > b, a, b);
}
template <class V>
inline V min(V a, V b) {
  return select(a < b, a, b);
}

#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMAF)
constexpr bool kHasFma = true;
#else
constexpr bool kHasFma = false;
#endif

// fl32(a*b + c) without a fused instruction. The product of two fp32 numbers is exact in fp64. The
// fp64 sum may be rounded again to fp32 unless it lies halfway between two fp32 numbers, where its
// last 28 bits are zero. Such a sum is rounded to odd (Boldo and Melquiond 2008): if it is inexact,
// it is truncated and its last bit is set. Rounding it to fp32 then gives the same result as a
// single rounding.
template <class V>
inline V fma_by_odd_rounding(V a, V b, V c) {
  using D = LanesLike<double, V>;
  using L = LanesLike<int64_t, V>;
  const D product = convert<D>(a) * convert<D>(b);
  const D addend = convert<D>(c);
  const D sum = product + addend;
  const L last_bits = (bits_as<L>(sum) & 0x0fffffff) | int64_t{1} << 32;  // upper halves are not 0
  if (!any(bits_as<Lanes<int32_t, 2 * kCountOf<V>>>(last_bits) == 0)) return convert<V>(sum);
  const D from_addend = sum - product;
  // The error is exact; it is NaN if the sum is not finite.
  const D error = (product - (sum - from_addend)) + (addend - from_addend);
  const L sum_bits = bits_as<L>(sum);
  const L sign = all<L>(INT64_MIN);
  const D outwards = bits_as<D>(bits_as<L>(error) ^ (sum_bits & sign));  // the error, away from 0
  const L is_larger = outwards < 0, is_smaller = outwards > 0;           // the sum, in magnitude
  const L odd = (sum_bits + is_larger) | ((is_larger | is_smaller) & 1);
  return convert<V>(bits_as<D>(odd));
}

// a * b + c, rounded once.
template <class V>
inline V fma(V a, V b, V c) {
  if constexpr (kIsHalved<V>) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64) return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#endif
#if defined(__FMA__)
    if constexpr (sizeof(V) == 32) return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    if constexpr (sizeof(V) == 16) return (V)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
    static_assert(sizeof(V) == 16);
    return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(__FP_FAST_FMAF)
    V out;
    for (int i = 0; i < kCountOf<V>; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return out;
#else
    return fma_by_odd_rounding(a, b, c);
#endif
  }
}

// The same for BF16 values a and b. Their product is exact in fp32, so an addition in fp64 and one
// conversion give the same result as a single rounding (53 >= 2 * 24 + 2 bits, Figueroa 1995).
template <class V>
inline V fma_bf16(V a, V b, V c) {
  using D = LanesLike<double, V>;
  return convert<V>(convert<D>(a) * convert<D>(b) + convert<D>(c));
}

// The sum and the maximum of all lanes. Halves are combined until one lane is left: 8, 4, 2, 1.
inline float sum_lanes(F16 v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

inline float max_lanes(F16 v) {
  return fold(v, [](auto a, auto b) { return select(a > b, a, b); });
}

inline F16 load_bf16(const uint16_t* from) {
  return bits_as<F16>(convert<U16>(load_as<H16>(from)) << 16);
}

// Rounds to the nearest BF16, ties to even, and returns it as fp32. NaN stays NaN.
inline F16 round_to_bf16(F16 v) {
  const U16 bits = bits_as<U16>(v);
  const U16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  return select(v == v, bits_as<F16>(rounded), bits_as<F16>(bits | 0x00400000u));
}

// Stores the upper halves of values from round_to_bf16.
inline void store_bf16(uint16_t* to, F16 rounded) {
  store_as(to, convert<H16>(bits_as<U16>(rounded) >> 16));
}

// The nearest integer as fp32, ties to even, for |v| < 2^22.
template <class V>
inline V round_even(V v) {
  const V magic = all<V>(12582912.0f);  // 1.5 * 2^23
  return (v + magic) - magic;
}
inline I16 to_int(F16 integral) { return convert<I16>(integral); }
inline F16 to_float(I16 v) { return convert<F16>(v); }

// e^(x - n * ln(2)), which is close to 1, by Cody and Waite's reduction. The polynomial is the
// Taylor series to degree 7 on |r| <= ln(2)/2 (truncation error below 2^-26).
template <class V>
inline V exp_reduced(V x, V n) {
  V r = fma(n, all<V>(-0.693359375f), x);
  r = fma(n, all<V>(2.12194440e-4f), r);
  V p = all<V>(1.9841270e-4f);
  p = fma(p, r, all<V>(1.3888889e-3f));
  p = fma(p, r, all<V>(8.3333333e-3f));
  p = fma(p, r, all<V>(4.1666667e-2f));
  p = fma(p, r, all<V>(1.6666667e-1f));
  p = fma(p, r, all<V>(0.5f));
  p = fma(p, r, all<V>(1.0f));
  return fma(p, r, all<V>(1.0f));
}

// e^x to about 1 ulp; 0 below -87.3, +inf above 88.7. NaN stays NaN, because max() and min() return
// their second operand for it.
template <class V>
inline V exp(V x) {
  using I = LanesLike<int32_t, V>;
  const V clamped = max(all<V>(-88.0f), min(all<V>(89.0f), x));
  const V n = round_even(clamped * all<V>(1.44269504f));
  const V p = exp_reduced(clamped, n);
  // 2^n is computed as two factors, because n reaches 128 and 2^i needs -126 <= i <= 127.
  const auto power_of_two = [](I i) { return bits_as<V>((i + 127) << 23); };
  const I whole = convert<I>(n);
  const I half = whole >> 1;
  const V value = (p * power_of_two(half)) * power_of_two(whole - half);
  return select(x < all<V>(-87.3f), V{}, value);
}

// e^x for x <= 0 and NaN. It needs fewer steps than exp(), because n = -127 gives the factor zero
// and subnormal results count as zero.
template <class V>
inline V exp_not_above_zero(V x) {
  using I = LanesLike<int32_t, V>;
  const V clamped = max(all<V>(-88.0f), x);
  const V magic = all<V>(12582912.0f);  // 1.5 * 2^23: puts the integer into the low bits
  const V shifted = clamped * all<V>(1.44269504f) + magic;
  const V power = bits_as<V>((bits_as<I>(shifted) + 127) << 23);
  return exp_reduced(clamped, shifted - magic) * power;
}

}  // namespace
}  // namespace specqd
