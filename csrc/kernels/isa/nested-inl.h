// The nested format, one tile at a time: BF16 bits -> E2M1 codes, E8M0 scales, residuals, patches,
// and back. formats/mxfp4.py defines the cast in NumPy; tests compare with it.
//
// Tile order: the weight of output n (0..15) and input k (0..31) is at (k / 2) * 32 + n * 2 +
// k % 2. Its code is nibble (k / 2) % 4 of the 16-bit word (k / 8) * 32 + n * 2 + k % 2, little end
// first. Its residual has the same position as the weight.
#pragma once

#include "kernels/bf16.h"
#include "kernels/isa/lanes-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

// BF16 bits of the least magnitude that rounds to each grid value at scale 1. Residuals count from
// here; values that round to zero count theirs from kLow[0].
constexpr uint16_t kLow[8] = {0x3d80, 0x3e80, 0x3f40, 0x3fa0, 0x3fe0, 0x4020, 0x4060, 0x40a0};
// Whether a tie at the boundary kLow[i], i >= 1, rounds up: if the upper neighbour's code is even.
constexpr bool kTieGoesUp[8] = {false, false, true, false, true, false, true, false};
constexpr double kGrid[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

using H32 = Lanes<uint16_t, 2 * kLanes>;

// Rounds sixteen magnitudes to E2M1's grid, ties to the even code: one bit of mantissa, steps of at
// least 0.5, saturation at 6. Adding a large number rounds off the bits below the step.
inline F16 round_to_grid(F16 value) {
  const F16 binade = bits_as<F16>(bits_as<I16>(value) & 0x7f800000);
  const F16 room = max(binade, splat(1.0f)) * splat(6291456.0f);  // 1.5 * 2^22
  return min((value + room) - room, splat(6.0f));
}

// The index 0..7 of a grid value.
inline I16 grid_index(F16 value) {
  const I16 bits = bits_as<I16>(value) >> 22;  // exponent and first bit of the mantissa
  return max(bits - 252, (bits != 0) & 1);
}

// kLow of the indices in both halves of each lane: 0x3ee0 + 0x40 * index, minus 0x160, 0xa0 and
// 0x20 for the indices 0, 1 and 2.
inline U16 low_of_pairs(U16 index) {
  const U16 half = index >> 1;
  const U16 is_small = ~(index >> 2) & 0x00010001u;
  const U16 below_3 = is_small & ~(half & index), below_2 = is_small & ~half;
  const U16 is_1 = below_2 & index, is_0 = below_2 & ~index;
  const U16 less = (below_3 << 5) + (is_1 << 7) + (is_0 << 8) + (is_0 << 6);
  return (index << 6) + 0x3ee03ee0u - less;
}

struct TileMagnitudes {
  I16 at[kBlock];  // [k], lanes are the sixteen outputs
};

// 2^(127 - scale), for 4 <= scale <= 252.
inline F16 scale_factor(I16 scale) { return bits_as<F16>((254 - scale) << 23); }
inline F16 apply_scale(I16 magnitude, F16 factor) { return bits_as<F16>(magnitude << 16) * factor; }

// Sum over k of q (q - 2v), v = |w| * 2^(127 - X): the squared error minus the sum of v^2, which is
// the same for every X in units of 4^(X - 127). Exact in any order: terms with q != 0 are multiples
// of 2^-9, and the sum of 32 terms stays below 2^13.
inline F16 relative_error(const TileMagnitudes& w, I16 scale) {
  const F16 factor = scale_factor(scale);
  F16 sum{};
  for (int k = 0; k < kBlock; ++k) {
    const F16 value = apply_scale(w.at[k], factor);
    const F16 rounded = round_to_grid(value);
    sum = sum + rounded * (rounded - (value + value));
  }
  return sum;
}

using D16 = Lanes<double, kLanes>;

// Sum over k, in order, of (|w| * 2^(127-X) - q)^2: the definition.
inline D16 squared_error(const TileMagnitudes& w, I16 scale) {
  const F16 factor = scale_factor(scale);
  D16 sum{};
  for (int k = 0; k < kBlock; ++k) {
    const F16 rounded = round_to_grid(apply_scale(w.at[k], factor));
    const D16 value =  // may leave fp32's range
        convert<D16>(bits_as<F16>(w.at[k] << 16)) * convert<D16>(factor);
    const D16 error = value - convert<D16>(rounded);
    sum = sum + error * error;
  }
  return sum;
}

// The first of floor, floor - 1 and floor + 1 with the least error.
template <class Error>
inline I16 least_of_three(I16 floor, const Error& error_of) {
  I16 best = floor;
  auto least = error_of(floor);
  for (int relative = -1; relative <= 1; relative += 2) {
    const auto error = error_of(floor + relative) * (relative < 0 ? 0.25f : 4.0f);
    const auto better = error < least;  // false if all weights are zero, since both errors are zero
    best = select(convert<I16>(better), floor + relative, best);
    least = select(better, error, least);
  }
  return best;
}

// The scale byte of each output. `largest` is the largest magnitude of its block. Its binade must
// be one in which every boundary of every candidate is a normal number.
inline I16 choose_scales(const TileMagnitudes& w, I16 largest, ScaleRule rule) {
  const I16 floor = select(largest == 0, splat_int(127), (largest >> 7) - 2);
  if (rule == ScaleRule::kFloor) return floor;
  // If a block spans at most 16 binades, the definition's sums in double are exact: squares are
  // multiples of 2^-40 and their sum is below 2^12. The relative errors then choose the same scale.
  const I16 least = (largest & 0x7f80) - (16 << 7);
  I16 is_wide{};
  for (int k = 0; k < kBlock; ++k) is_wide |= (w.at[k] != 0) & (w.at[k] < least);
  if (any(is_wide)) return least_of_three(floor, [&](I16 x) { return squared_error(w, x); });
  return least_of_three(floor, [&](I16 x) { return relative_error(w, x); });
}

// The same in fp64, one weight at a time, for blocks at the ends of the exponent range.

inline double power_of_two_fp64(int n) {  // -1022 <= n <= 1023
  return bits_as<double>(static_cast<uint64_t>(n + 1023) << 52);
}

inline double scaled_value(uint16_t magnitude, int scale) {
  const int exponent = magnitude >> 7;
  const int significand = exponent == 0 ? (magnitude & 127) : (magnitude & 127) + 128;
  const int power = (exponent == 0 ? 1 : exponent) - 127 - 7 + (127 - scale);
  return significand * power_of_two_fp64(power);
}

inline int round_scalar(double value) {
  constexpr double kBoundary[8] = {0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};
  int index = 0;
  for (int i = 1; i < 8; ++i) index += kTieGoesUp[i] ? value >= kBoundary[i] : value > kBoundary[i];
  return index;
}

inline double squared_error_scalar(const uint16_t* magnitudes, int scale, int relative) {
  double sum = 0.0;
  for (int k = 0; k < kBlock; ++k) {
    const double value = scaled_value(magnitudes[k], scale);
    const double error = value - kGrid[round_scalar(value)];
    sum = sum + error * error;
  }
  return sum * (relative < 0 ? 0.25 : relative > 0 ? 4.0 : 1.0);
}

inline int choose_scale_scalar(const uint16_t* magnitudes, ScaleRule rule) {
  int largest = 0;
  for (int k = 0; k < kBlock; ++k) largest = magnitudes[k] > largest ? magnitudes[k] : largest;
  if (largest == 0) return 127;
  const int floor = (largest >> 7) > 2 ? (largest >> 7) - 2 : 0;
  if (rule == ScaleRule::kFloor) return floor;
  int best = floor;
  double least = squared_error_scalar(magnitudes, floor, 0);
  for (int relative = -1; relative <= 1; relative += 2) {
    const int candidate = floor + relative;
    if (candidate < 0 || candidate > 254) continue;
    const double error = squared_error_scalar(magnitudes, candidate, relative);
    if (error < least) {
      least = error;
      best = candidate;
    }
  }
  return best;
}

inline void put_code(uint8_t* codes, int row, int lane, int code) {
  uint16_t word;
  uint8_t* at = codes + ((row / 4) * 32 + lane) * 2;
  std::memcpy(&word, at, 2);
  word = static_cast<uint16_t>(word | code << (4 * (row % 4)));
  std::memcpy(at, &word, 2);
}

inline int get_code(const uint8_t* codes, int row, int lane) {
  uint16_t word;
  std::memcpy(&word, codes + ((row / 4) * 32 + lane) * 2, 2);
  return word >> (4 * (row % 4)) & 15;
}

int encode_tile_scalar(const uint16_t* tile, ScaleRule rule, const TileOut& out) {
  int patches = 0;
  std::memset(out.codes, 0, kTileCodes);
  int scale[kPanel];
  for (int n = 0; n < kPanel; ++n) {
    uint16_t magnitudes[kBlock];
    for (int k = 0; k < kBlock; ++k)
      magnitudes[k] = tile[k / 2 * 32 + n * 2 + k % 2] & kBf16MagnitudeMask;
    scale[n] = choose_scale_scalar(magnitudes, rule);
    out.scales[n] = static_cast<uint8_t>(scale[n]);
  }
  for (int at = 0; at < kTileWeights; ++at) {
    const int row = at / 32, lane = at % 32, x = scale[lane / 2];
    const uint16_t magnitude = tile[at] & kBf16MagnitudeMask;
    const int index = round_scalar(scaled_value(magnitude, x));
    put_code(out.codes, row, lane, index | (tile[at] >> 15) << 3);
    const int residual = magnitude - kLow[index] - (x - 127) * 128;
    const bool fits = residual >= 0 && residual <= 255;
    out.residuals[at] = static_cast<uint8_t>(fits ? residual : 0);
    if (!fits) out.patches[patches++] = static_cast<uint32_t>(at) << 16 | tile[at];
  }
  return patches;
}

// The magnitudes and signs of input k for sixteen outputs, from the tile's row of BF16 pairs.
inline I16 pair_member(const uint16_t* tile, int k) {
  const U16 pairs = load_as<U16>(tile + k / 2 * 32);
  return bits_as<I16>(k % 2 ? pairs >> 16 : pairs & 0xffff);
}

int encode_tile(const uint16_t* tile, ScaleRule rule, const TileOut& out) {
  TileMagnitudes w;
  I16 largest{};
  for (int k = 0; k < kBlock; ++k) {
    w.at[k] = pair_member(tile, k) & kBf16MagnitudeMask;
    largest = max(w.at[k], largest);
  }
  // The arithmetic below holds while all boundaries are normal: 4 <= X <= 252. The vector unit
  // treats subnormals as zero, but the cast's errors count them.
  const I16 exponent = largest >> 7;
  I16 unusual = (largest != 0) & ((exponent < 7) | (exponent > 250));
  if (rule == ScaleRule::kMse)
    for (int k = 0; k < kBlock; ++k) unusual |= (w.at[k] != 0) & (w.at[k] < 128);
  if (any(unusual)) return encode_tile_scalar(tile, rule, out);

  const I16 scale = choose_scales(w, largest, rule);
  const F16 factor = scale_factor(scale);
  const I16 shift = ((scale - 127) << 7) & 0xffff;
  const H32 shifts = bits_as<H32>(shift | shift << 16);
  store_as(out.scales, convert<Lanes<uint8_t, kPanel>>(scale));
  uint32_t misfits[kBlock / 2];  // a bit per weight of a row of pairs: even k low, odd k high
  for (int group = 0; group < kBlock / 8; ++group) {
    U16 words{};  // codes of four rows, even k in the lower half
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int row = group * 4 + i;
      const U16 pairs = load_as<U16>(tile + row * 32);
      const I16 even = grid_index(round_to_grid(apply_scale(w.at[row * 2], factor)));
      const I16 odd = grid_index(round_to_grid(apply_scale(w.at[row * 2 + 1], factor)));
      const U16 index = bits_as<U16>(even | odd << 16);
      words |= (index | (pairs & 0x80008000u) >> 12) << (4 * i);
      const U16 residuals = bits_as<U16>(bits_as<H32>(pairs & 0x7fff7fffu) -
                                         bits_as<H32>(low_of_pairs(index)) - shifts);
      const I16 fits_even = (bits_as<I16>(residuals) & 0xff00) == 0;
      const I16 fits_odd = (bits_as<I16>(residuals >> 16) & 0xff00) == 0;
      misfits[row] = lane_bits(~fits_even) | lane_bits(~fits_odd) << 16;
      const U16 kept = residuals & bits_as<U16>((fits_even & 0xff) | (fits_odd & 0xff0000));
      store_as(out.residuals + row * 32, convert<H16>(kept | kept >> 8));
    }
    store_as(out.codes + group * 64, words);
  }
  int patches = 0;
  for (int row = 0; row < kBlock / 2; row += 2) {
    uint64_t left = misfits[row] | static_cast<uint64_t>(misfits[row + 1]) << 32;
    for (; left != 0; left &= left - 1) {
      const int bit = __builtin_ctzll(left);
      const int at = (row + bit / 32) * 32 + bit % 16 * 2 + bit / 16 % 2;
      out.patches[patches++] = static_cast<uint32_t>(at) << 16 | tile[at];
    }
  }
  return patches;
}

// For each code, the BF16 bits of its least magnitude at scale byte 0, modulo 2^16, and its sign.
// The table holds them twice, because the permutation reads five bits of an index.
struct CodeWords {
  alignas(64) uint16_t word[32];
  constexpr CodeWords() : word() {
    for (int i = 0; i < 32; ++i)
      word[i] = static_cast<uint16_t>(kLow[i & 7] - (127 << 7) + ((i >> 3 & 1) << 15));
  }
};
constexpr CodeWords kCodeWords;

// Applies eight patches at a time and repeats the last one: a loop with one step per patch would
// mispredict its end at every tile.
inline void apply_patches(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  const uint32_t* p = w.patches + w.patch_starts[tile];
  for (int64_t n = w.patch_starts[tile + 1] - w.patch_starts[tile]; n > 0; n -= 8, p += 8) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) {
      const uint32_t patch = p[i < n ? i : n - 1];
      out[patch >> 16] = static_cast<uint16_t>(patch);
    }
  }
}

// Decodes one tile of MXFP4 weights with scales from 2 to 252. Their BF16 bits are those of the
// grid value, ((code & 7) << 6) + (126 << 7) except for 0 and 1/2, with the scale added to the
// exponent. The halves of a lane hold two weights of an output.
void decode_mxfp4_tile(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  constexpr uint32_t kOnes = 0x00010001u;
  const uint8_t* codes = w.codes + tile * kTileCodes;
  const U16 scales = convert<U16>(load_as<Lanes<uint8_t, kPanel>>(w.scales + tile * kPanel));
  const U16 exponents = (scales << 7 | scales << 23) - kOnes * 128;  // 126 - 127 = -1
  for (int row = 0; row < kBlock / 2; ++row) {
    const U16 nibbles = load_as<U16>(codes + row / 4 * 64) >> (row % 4 * 4);
    const U16 index = nibbles & (kOnes * 7);
    const U16 is_large = (index >> 1 | index >> 2) & kOnes;  // 1 and above
    const U16 is_half = index & ~is_large & kOnes;
    const U16 is_some = (index | is_large) & kOnes;
    const U16 bits = (index << 6) + exponents - (is_half << 6);
    const U16 sign = (nibbles & (kOnes * 8)) << 12;
    store_as(out + row * 32, (bits & ((is_some << 16) - is_some)) | sign);
  }
}

// Decodes one tile to BF16 bits from the planes that the matrix has.
void decode_tile(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  if (w.plain != nullptr) {
    std::memcpy(out, w.plain + tile * kTileWeights, kTileWeights * sizeof(uint16_t));
    return;
  }
  if (w.residuals == nullptr) return decode_mxfp4_tile(w, tile, out);
  const uint8_t* codes = w.codes + tile * kTileCodes;
  const uint8_t* scales = w.scales + tile * kPanel;
  const uint8_t* residuals = w.residuals + tile * kTileWeights;
  for (int at = 0; at < kTileWeights; ++at) {
    const int code = get_code(codes, at / 32, at % 32);
    const int magnitude = kLow[code & 7] + ((scales[at % 32 / 2] - 127) << 7) + residuals[at];
    out[at] = static_cast<uint16_t>(magnitude + ((code >> 3) << 15));
  }
  apply_patches(w, tile, out);
}

}  // namespace
}  // namespace specqd
