// Elementary functions that give the same bits on every machine. They use only IEEE double +, -, *,
// / and integer operations, in one fixed order, and never libm. Errors are a few ulp of double, so
// nearly every result rounds to the same fp32 as the exact value. Arguments must be finite.
//
// The compiler must neither contract nor reorder (-ffp-contract=off).
#pragma once

#include <bit>
#include <cfloat>
#include <cstdint>

#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "scalar_math.h needs IEEE double arithmetic as written"
#endif

namespace specqd::scalar {

inline constexpr double kPi = 3.14159265358979323846;

// An unevaluated sum, |lo| <= ulp(hi) / 2: twice the precision of a double.
struct Extended {
  double hi;
  double lo;
};

// a + b exactly (Knuth).
constexpr Extended two_sum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

// a * b exactly while |a|, |b| < 2^996 (Dekker and Veltkamp).
constexpr Extended two_product(double a, double b) {
  constexpr double kSplitter = 134217729.0;  // 2^27 + 1
  const double a_big = kSplitter * a;
  const double b_big = kSplitter * b;
  const double a_hi = a_big - (a_big - a);
  const double b_hi = b_big - (b_big - b);
  const double a_lo = a - a_hi;
  const double b_lo = b - b_hi;
  const double product = a * b;
  return {product, a_lo * b_lo - (((product - a_hi * b_hi) - a_lo * b_hi) - a_hi * b_lo)};
}

// Coefficients of a polynomial from the constant term up, evaluated by Horner's rule.
template <int N>
constexpr double polynomial(double x, const double (&coefficients)[N]) {
  double value = coefficients[N - 1];
  for (int i = N - 2; i >= 0; --i) value = value * x + coefficients[i];
  return value;
}

// The largest integer <= x and the smallest >= x.
constexpr double floor(double x) {
  if (!(x > -0x1p62 && x < 0x1p62)) return x;  // x is an integer, infinite or NaN
  const double whole = static_cast<double>(static_cast<int64_t>(x));
  return whole > x ? whole - 1.0 : whole;
}
constexpr double ceil(double x) { return -floor(-x); }

// 2^n, |n| < 1023.
constexpr double power_of_two(int n) {
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// ln 2 in two parts. The first has 21 trailing zero bits, so its product with an exponent is exact.
inline constexpr double kLn2Hi = 0x1.62e42fee00000p-1;
inline constexpr double kLn2Lo = 0x1.a39ef35793c76p-33;

// The natural logarithm of a normal x > 0, with an error of about 2^-59 |log(m)|, where x = 2^e m.
//   log(m) = 2 atanh(f) = 2 f + 2 f (f^2/3 + f^4/5 + ...),   f = (m - 1) / (m + 1), |f| < 0.172
// Only the leading 2 f needs the extra precision: the rest is below 1 % of it.
constexpr Extended log_extended(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  const double numerator = m - 1.0;  // exact
  const Extended denominator = two_sum(m, 1.0);
  const double f = numerator / denominator.hi;
  const Extended back = two_product(f, denominator.hi);
  const double f_lo = (((numerator - back.hi) - back.lo) - f * denominator.lo) / denominator.hi;

  constexpr double kTail[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                              1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  const double square = f * f;
  const double tail = 2.0 * f * (square * polynomial(square, kTail));
  const double e = static_cast<double>(exponent);
  const Extended sum = two_sum(e * kLn2Hi, 2.0 * f);
  return two_sum(sum.hi, sum.lo + (e * kLn2Lo + 2.0 * f_lo + tail));
}

constexpr double log(double x) { return log_extended(x).hi; }

// e^(x.hi + x.lo); 0 if the result is below the normal range, infinity if it is above the finite
// one.
//   e^x = 2^k e^r,   |r| <= ln(2) / 2,   e^r = 1 + r + r^2/2! + ... + r^14/14!
constexpr double exp_extended(Extended x) {
  if (x.hi > 709.7) return std::bit_cast<double>(0x7ff0000000000000ull);
  if (x.hi < -708.3) return 0.0;
  constexpr double kInverseLn2 = 0x1.71547652b82fep0;
  const double k = floor(x.hi * kInverseLn2 + 0.5);
  const double r_hi = x.hi - k * kLn2Hi;  // exact
  const Extended r = two_sum(r_hi, x.lo - k * kLn2Lo);

  constexpr double kTail[] = {1.0 / 2,          1.0 / 6,        1.0 / 24,        1.0 / 120,
                              1.0 / 720,        1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                              1.0 / 3628800,    1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
                              1.0 / 87178291200};
  const double tail = r.hi * r.hi * polynomial(r.hi, kTail) + r.lo;
  const Extended one_plus_r = two_sum(1.0, r.hi);
  const double mantissa = one_plus_r.hi + (one_plus_r.lo + tail);
  const int exponent = static_cast<int>(k);
  return mantissa * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
}

constexpr double exp(double x) { return exp_extended({x, 0.0}); }

// x^y for a normal x > 0. The logarithm has twice the precision, because exp would otherwise
// magnify its error by |y log x|.
constexpr double pow(double x, double y) {
  const Extended logarithm = log_extended(x);
  const Extended product = two_product(logarithm.hi, y);
  return exp_extended(two_sum(product.hi, product.lo + logarithm.lo * y));
}

struct SinCos {
  double sin;
  double cos;
};

// Sine and cosine of r for |r.hi| <= pi/4 and |r.lo| <= ulp(r.hi), by Taylor series with a relative
// error below 2^-60.
constexpr SinCos sincos_reduced(Extended r) {
  constexpr double kSin[] = {
      -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
      -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
  constexpr double kCos[] = {
      1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
      1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000};
  const double square = r.hi * r.hi;
  const double sine_tail = r.hi * square * polynomial(square, kSin);
  const double half = 0.5 * square;
  const double one_minus_half = 1.0 - half;
  const double cosine_tail =
      ((1.0 - one_minus_half) - half) + (square * square * polynomial(square, kCos) - r.hi * r.lo);
  return {r.hi + (sine_tail + r.lo * one_minus_half), one_minus_half + cosine_tail};
}

// Sine and cosine of any |x| < 2^30. The remainder of x by pi/2 has twice the precision, within
// |x| 2^-105 of the exact one, so results close to a multiple of pi/2 are accurate too.
constexpr SinCos sincos(double x) {
  constexpr double kHalfPi[] = {0x1.921fb54442d18p0, 0x1.1a62633145c07p-54};
  const double magnitude = x < 0.0 ? -x : x;
  const int64_t quadrant = static_cast<int64_t>(magnitude * 0x1.45f306dc9c883p-1 + 0.5);
  const double k = static_cast<double>(quadrant);
  Extended r = {magnitude, 0.0};
  for (double part : kHalfPi) {
    const Extended multiple = two_product(k, -part);
    const Extended sum = two_sum(r.hi, multiple.hi);
    r = two_sum(sum.hi, sum.lo + (r.lo + multiple.lo));
  }
  const SinCos reduced = sincos_reduced(r);
  const bool is_swapped = (quadrant & 1) != 0;
  double sine = is_swapped ? reduced.cos : reduced.sin;
  double cosine = is_swapped ? reduced.sin : reduced.cos;
  if ((quadrant & 2) != 0) sine = -sine;
  if (((quadrant + 1) & 2) != 0) cosine = -cosine;
  return {x < 0.0 ? -sine : sine, cosine};
}

}  // namespace specqd::scalar
