// Vectors with any power of two of lanes. Those that fit into a register are the compiler's own.
// Others are two halves, which are vectors again, because GCC moves its own vectors through memory
// if they are wider than a register. Both kinds have the same lane-by-lane operators, with vectors
// and with scalars; comparisons give -1 and 0.
//
// Only files under isa/ include this; everything here has internal linkage.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace specqd {
namespace {

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

template <class T, int count>
struct Halves;

template <class T, int count, bool is_native = (sizeof(T) * count <= kRegisterBytes)>
struct LanesOf {
  typedef T Type __attribute__((vector_size(sizeof(T) * count)));
};
template <class T, int count>
struct LanesOf<T, count, false> {
  using Type = Halves<T, count>;
};

// `count` lanes of T.
template <class T, int count>
using Lanes = typename LanesOf<T, count>::Type;

template <class V>
constexpr bool kIsHalved = requires { typename V::Half; };
template <class T>
T copy_of(const T&);
template <class V>
using ElementOf = decltype(copy_of(V{}[0]));
template <class V>
constexpr int kCountOf = sizeof(V) / sizeof(ElementOf<V>);
template <class V>
using HalfOf = Lanes<ElementOf<V>, kCountOf<V> / 2>;
// A vector of T with as many lanes as V.
template <class T, class V>
using LanesLike = Lanes<T, kCountOf<V>>;

template <class V>
inline V all(ElementOf<V> value) {
  if constexpr (kIsHalved<V>)
    return V(value);
  else
    return value - V{};
}

template <int bytes>
struct MaskLane {
  using Type = int32_t;
};
template <>
struct MaskLane<2> {
  using Type = int16_t;
};
template <>
struct MaskLane<8> {
  using Type = int64_t;
};

template <class T, int count>
struct Halves {
  using Half = Lanes<T, count / 2>;
  using Mask = Lanes<typename MaskLane<sizeof(T)>::Type, count>;

  Half low, high;

  Halves() = default;
  Halves(Half low, Half high) : low(low), high(high) {}
  Halves(T value) : low(all<Half>(value)), high(low) {}  // implicit: operators take scalars

  T operator[](int i) const { return i < count / 2 ? low[i] : high[i - count / 2]; }

  friend Halves operator+(Halves a, Halves b) { return {a.low + b.low, a.high + b.high}; }
  friend Halves operator-(Halves a, Halves b) { return {a.low - b.low, a.high - b.high}; }
  friend Halves operator*(Halves a, Halves b) { return {a.low * b.low, a.high * b.high}; }
  friend Halves operator/(Halves a, Halves b) { return {a.low / b.low, a.high / b.high}; }
  friend Halves operator&(Halves a, Halves b) { return {a.low & b.low, a.high & b.high}; }
  friend Halves operator|(Halves a, Halves b) { return {a.low | b.low, a.high | b.high}; }
  friend Halves operator^(Halves a, Halves b) { return {a.low ^ b.low, a.high ^ b.high}; }
  friend Halves operator<<(Halves a, Halves b) { return {a.low << b.low, a.high << b.high}; }
  friend Halves operator>>(Halves a, Halves b) { return {a.low >> b.low, a.high >> b.high}; }
  friend Halves operator-(Halves a) { return {-a.low, -a.high}; }
  friend Halves operator~(Halves a) { return {~a.low, ~a.high}; }

  friend Mask operator==(Halves a, Halves b) { return {a.low == b.low, a.high == b.high}; }
  friend Mask operator!=(Halves a, Halves b) { return {a.low != b.low, a.high != b.high}; }
  friend Mask operator<(Halves a, Halves b) { return {a.low < b.low, a.high < b.high}; }
  friend Mask operator<=(Halves a, Halves b) { return {a.low <= b.low, a.high <= b.high}; }
  friend Mask operator>(Halves a, Halves b) { return {a.low > b.low, a.high > b.high}; }
  friend Mask operator>=(Halves a, Halves b) { return {a.low >= b.low, a.high >= b.high}; }

  Halves& operator+=(Halves b) { return *this = *this + b; }
  Halves& operator|=(Halves b) { return *this = *this | b; }
};

// 0, 1, 2, ...
template <class V>
inline V lane_numbers() {
  if constexpr (kIsHalved<V>) {
    const auto low = lane_numbers<typename V::Half>();
    return {low, low + kCountOf<V> / 2};
  } else {
    V v{};
    for (int i = 0; i < kCountOf<V>; ++i) v[i] = i;
    return v;
  }
}

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (kIsHalved<To> && kIsHalved<From>) {
    using Half = typename To::Half;
    return {bits_as<Half>(from.low), bits_as<Half>(from.high)};
  } else {
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
  }
}

template <class V>
inline V load_as(const void* from) {
  if constexpr (kIsHalved<V>) {
    using Half = typename V::Half;
    return {load_as<Half>(from), load_as<Half>(static_cast<const char*>(from) + sizeof(Half))};
  } else {
    V v;
    std::memcpy(&v, from, sizeof(v));
    return v;
  }
}

template <class V>
inline void store_as(void* to, V v) {
  if constexpr (kIsHalved<V>) {
    store_as(to, v.low);
    store_as(static_cast<char*>(to) + sizeof(v.low), v.high);
  } else {
    std::memcpy(to, &v, sizeof(v));
  }
}

template <int... i>
struct Indices {};
template <int count, int... i>
struct IndicesBelow : IndicesBelow<count - 1, count - 1, i...> {};
template <int... i>
struct IndicesBelow<0, i...> {
  using Type = Indices<i...>;
};

template <int number>
struct Constant {
  constexpr operator int() const { return number; }
};

template <class F, int... i>
[[gnu::always_inline]] inline void call_with(Indices<i...>, const F& f) {
  (f(Constant<i>{}), ...);
}

// Calls f with the constants 0 to count - 1. Instructions that take one lane of a register need its
// number at compile time, and GCC 12 may keep an array in memory if it unrolls a loop over it late.
template <int count, class F>
[[gnu::always_inline]] inline void repeat(const F& f) {
  call_with(typename IndicesBelow<count>::Type{}, f);
}

template <class To, int first, int step, class V, int... i>
inline To lanes_at(V a, V b, Indices<i...>) {
  return __builtin_shufflevector(a, b, (first + step * i)...);
}
// The lanes first, first + step, ... of the lanes of a followed by those of b. Both are the
// compiler's own vectors.
template <class To, int first, int step, class V>
inline To lanes_from(V a, V b) {
  return lanes_at<To, first, step>(a, b, typename IndicesBelow<kCountOf<To>>::Type{});
}

template <class V>
inline HalfOf<V> low_half(V v) {
  if constexpr (kIsHalved<V>)
    return v.low;
  else
    return lanes_from<HalfOf<V>, 0, 1>(v, v);
}

template <class V>
inline HalfOf<V> high_half(V v) {
  if constexpr (kIsHalved<V>)
    return v.high;
  else
    return lanes_from<HalfOf<V>, kCountOf<V> / 2, 1>(v, v);
}

template <class Half>
inline Lanes<ElementOf<Half>, 2 * kCountOf<Half>> join(Half low, Half high) {
  using V = Lanes<ElementOf<Half>, 2 * kCountOf<Half>>;
  if constexpr (kIsHalved<V>)
    return {low, high};
  else
    return lanes_from<V, 0, 1>(low, high);
}

// The integer type between 8 and 32 bits.
template <bool is_unsigned>
struct Middle {
  using Type = int16_t;
};
template <>
struct Middle<true> {
  using Type = uint16_t;
};

// Converts lanes to another type; integers keep their low bits. Each step at most doubles or halves
// the size of a lane, between one register and two whole ones, because GCC 12 converts vectors of
// eight bytes lane by lane.
template <class To, class From>
inline To convert(From from) {
  using T = ElementOf<To>;
  using S = ElementOf<From>;
  if constexpr (sizeof(T) > 2 * sizeof(S) || sizeof(S) > 2 * sizeof(T)) {
    using M = typename Middle<(S(-1) > S(0))>::Type;
    return convert<To>(convert<LanesLike<M, To>>(from));
  } else if constexpr (!kIsHalved<To> && !kIsHalved<From>) {
    return __builtin_convertvector(from, To);
  } else if constexpr (sizeof(HalfOf<To>) >= 16 && sizeof(HalfOf<From>) >= 16) {
    using Half = HalfOf<To>;
    return join(convert<Half>(low_half(from)), convert<Half>(high_half(from)));
  } else if constexpr (kIsHalved<To>) {
    typedef T Wide __attribute__((vector_size(sizeof(To))));
    const Wide wide = __builtin_convertvector(from, Wide);
    return {lanes_from<HalfOf<To>, 0, 1>(wide, wide),
            lanes_from<HalfOf<To>, kCountOf<To> / 2, 1>(wide, wide)};
  } else if constexpr (S(0.5) != S(0)) {
    typedef S Wide __attribute__((vector_size(sizeof(From))));
    return __builtin_convertvector(lanes_from<Wide, 0, 1>(from.low, from.high), To);
  } else {
    return lanes_from<To, 0, 2>(bits_as<To>(from.low), bits_as<To>(from.high));
  }
}

// Takes `yes` in lanes whose mask is -1, and `no` where it is 0.
template <class Mask, class V>
inline V select(Mask mask, V yes, V no) {
  if constexpr (kIsHalved<V>)
    return {select(mask.low, yes.low, no.low), select(mask.high, yes.high, no.high)};
  else
    return mask ? yes : no;
}

// The mask as one bit per lane.
template <class Mask>
inline uint32_t lane_bits(Mask mask) {
  static_assert(sizeof(ElementOf<Mask>) == 4);
  if constexpr (kIsHalved<Mask>) {
    return lane_bits(mask.low) | lane_bits(mask.high) << (kCountOf<Mask> / 2);
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(Mask) == 64) return _mm512_movepi32_mask((__m512i)mask);
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(Mask) == 32)
      return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#endif
#if defined(__x86_64__)
    if constexpr (sizeof(Mask) == 16) return static_cast<uint32_t>(_mm_movemask_ps((__m128)mask));
#elif defined(__aarch64__)
    if constexpr (sizeof(Mask) == 16)
      return vaddvq_u32(vandq_u32((uint32x4_t)mask, uint32x4_t{1, 2, 4, 8}));
#endif
    uint32_t bits = 0;
    for (int i = 0; i < kCountOf<Mask>; ++i) bits |= (mask[i] & 1u) << i;
    return bits;
  }
}

template <class Mask>
inline bool any(Mask mask) {
  if constexpr (kIsHalved<Mask>) {
    return any(mask.low | mask.high);
  } else {
#if defined(__x86_64__)
    return lane_bits(mask) != 0;
#else
    const auto pair = bits_as<Lanes<uint64_t, 2>>(mask);
    return (pair[0] | pair[1]) != 0;
#endif
  }
}

// Combines all lanes with f, half with half until one lane is left: for sixteen lanes 8, 4, 2, 1.
template <class V, class F>
inline ElementOf<V> fold(V v, F f) {
  if constexpr (kCountOf<V> > 4)
    return fold(f(low_half(v), high_half(v)), f);
  else
    return f(f(v[0], v[2]), f(v[1], v[3]));
}

}  // namespace
}  // namespace specqd
