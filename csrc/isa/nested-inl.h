// The nested format, a tile at a time: BF16 bits -> E2M1 codes, E8M0 scales, residuals, patches,
// and back. mxfp4.py defines the cast in NumPy and is its reference.
//
// Tile order: the weight of output n (0..15) and input k (0..31) stands at (k / 2) * 32 + n * 2 +
// k % 2. Its code is nibble (k / 2) % 4 of the 16-bit word (k / 8) * 32 + n * 2 + k % 2, little end
// first. Its residual stands where the weight does.
#pragma once

#include "bf16.h"
#include "isa/lanes-inl.h"
#include "kernels.h"

namespace specqd {
namespace {

// BF16 bits of the least magnitude that rounds to each grid value at scale 1; the first is where
// residuals of values rounding to zero begin.
constexpr uint16_t kLow[8] = {0x3d80, 0x3e80, 0x3f40, 0x3fa0, 0x3fe0, 0x4020, 0x4060, 0x40a0};
// Of the boundaries kLow[1..7], these round up at the tie: those whose upper neighbour is even.
constexpr bool kTieGoesUp[8] = {false, false, true, false, true, false, true, false};
constexpr double kGrid[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

// What sixteen magnitudes round to at scale exponents `shift` = (X - 127) << 7: the index of the
// grid value, and a sum over the boundaries passed of `step`, which starts at step[0].
struct Rounded {
  I16 index;  // 0..7
  I16 sum;
};

inline Rounded round_to_grid(I16 magnitude, I16 shift, const int32_t (&step)[8]) {
  Rounded out{I16{}, splat_int(step[0])};
  for (int i = 1; i < 8; ++i) {
    const I16 boundary = shift + (kLow[i] - (kTieGoesUp[i] ? 1 : 0));
    const I16 above = magnitude > boundary;  // -1 where true
    out.index = out.index - above;
    out.sum = out.sum + (above & step[i]);
  }
  return out;
}

constexpr int32_t kDoubledGridSteps[8] = {0, 1, 1, 1, 1, 2, 2, 4};  // sum: twice the grid value
constexpr int32_t kLowSteps[8] = {                                  // sum: kLow of the index
                                  kLow[0],           kLow[1] - kLow[0], kLow[2] - kLow[1],
                                  kLow[3] - kLow[2], kLow[4] - kLow[3], kLow[5] - kLow[4],
                                  kLow[6] - kLow[5], kLow[7] - kLow[6]};

struct TileMagnitudes {
  I16 at[kBlock];  // [k] of sixteen outputs
};

using D16 = Lanes<double, kLanes>;

// Sum over k, in order, of (|w| * 2^(127-X) - q)^2, times 4^(X - base).
inline D16 squared_error(const TileMagnitudes& w, I16 scale, const int relative) {
  D16 sum{};
  const I16 shift = (scale - 127) << 7;
  const I16 exponent = 254 - scale;  // biased exponent of 2^(127-X), 1..254 on the fast path
  const D16 factor = convert<D16>(bits_as<F16>(exponent << 23));
  for (int k = 0; k < kBlock; ++k) {
    const Rounded rounded = round_to_grid(w.at[k], shift, kDoubledGridSteps);
    const D16 value = convert<D16>(bits_as<F16>(w.at[k] << 16)) * factor;
    const D16 error = value - convert<D16>(rounded.sum) * 0.5;
    sum = sum + error * error;
  }
  return sum * (relative < 0 ? 0.25 : relative > 0 ? 4.0 : 1.0);
}

// The scale byte of each output. `largest` is the largest magnitude of its block, of a binade where
// every boundary of every candidate is a normal number.
inline I16 choose_scales(const TileMagnitudes& w, I16 largest, ScaleRule rule) {
  const I16 floor = select(largest == 0, splat_int(127), (largest >> 7) - 2);
  if (rule == ScaleRule::kFloor) return floor;
  I16 best = floor;
  D16 least = squared_error(w, floor, 0);
  for (int relative = -1; relative <= 1; relative += 2) {
    const D16 error = squared_error(w, floor + relative, relative);
    const auto better = error < least;  // never where all is zero: both errors are
    best = select(convert<I16>(better), floor + relative, best);
    least = select(better, error, least);
  }
  return best;
}

// The same in fp64, one weight at a time: for blocks at the ends of the exponent range.

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

// Splits row r of a tile, sixteen pairs of BF16, into its even and odd k.
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
  // The integer comparisons below hold while all boundaries are normal: 4 <= X <= 252. Subnormals
  // are zero to the vector unit, not to the cast, whose errors count them.
  const I16 exponent = largest >> 7;
  I16 unusual = (largest != 0) & ((exponent < 7) | (exponent > 250));
  if (rule == ScaleRule::kMse)
    for (int k = 0; k < kBlock; ++k) unusual |= (w.at[k] != 0) & (w.at[k] < 128);
  if (any(unusual)) return encode_tile_scalar(tile, rule, out);

  const I16 scale = choose_scales(w, largest, rule);
  const I16 shift = (scale - 127) << 7;
  store_as(out.scales, convert<Lanes<uint8_t, kPanel>>(scale));
  int patches = 0;
  for (int group = 0; group < kBlock / 8; ++group) {
    I16 words{};  // the codes of four rows, the even k in the lower half
    for (int i = 0; i < 4; ++i) {
      const int row = group * 4 + i;
      I16 residuals{};
      for (int parity = 0; parity < 2; ++parity) {
        const int k = row * 2 + parity;
        const Rounded rounded = round_to_grid(w.at[k], shift, kLowSteps);
        const I16 code = rounded.index | (pair_member(tile, k) >> 15) << 3;
        const I16 residual = w.at[k] - rounded.sum - shift;
        const I16 fits = (residual >= 0) & (residual <= 255);
        words |= code << (4 * i + 16 * parity);
        residuals |= (residual & fits) << (8 * parity);
        for (uint32_t left = lane_bits(~fits); left != 0; left &= left - 1) {
          const int at = row * 32 + __builtin_ctz(left) * 2 + parity;
          out.patches[patches++] = static_cast<uint32_t>(at) << 16 | tile[at];
        }
      }
      store_as(out.residuals + row * 32, convert<H16>(bits_as<U16>(residuals)));
    }
    store_as(out.codes + group * 64, words);
  }
  return patches;
}

// For each code, the BF16 bits of its least magnitude at scale byte 0, modulo 2^16, and its sign;
// twice, as the permutation looks at five bits.
struct CodeWords {
  alignas(64) uint16_t word[32];
  constexpr CodeWords() : word() {
    for (int i = 0; i < 32; ++i)
      word[i] = static_cast<uint16_t>(kLow[i & 7] - (127 << 7) + ((i >> 3 & 1) << 15));
  }
};
constexpr CodeWords kCodeWords;

// Eight at a time, the last one repeated: a loop of as many steps as there are patches would
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

// One tile of weights that are MXFP4, of scales from 2 to 252: their BF16 bits are those of the
// grid value, ((code & 7) << 6) + (126 << 7) but for 0 and 1/2, with the scale added to the
// exponent. Two weights of an output at a time, in the halves of a lane.
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

// One tile of BF16 bits from all planes that there are, or copied from the plain one.
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
