// Encodes and decodes one tile of the nested format: BF16 bits to E2M1 codes, scales, residuals and
// patches, and back. docs/kernels.md defines the format; tests compare this code with a definition
// in NumPy.
//
// Tile order: the weight of output n (0..15) and input k (0..31) is at (k / 2) * 32 + n * 2 + k %
// 2. Its code is nibble (k / 2) % 4, counted from the low end, of the 16-bit word (k / 8) * 32 + n
// * 2 + k % 2. Its residual has the same position as the weight.
#pragma once

#include "kernels/bf16.h"
#include "kernels/isa/lanes-inl.h"
#include "kernels/isa/patches-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

// BF16 bits of the least magnitude that rounds to each grid value at scale 1. The residual of a
// weight is the distance of its bits from the entry of its code.
constexpr uint16_t kLow[8] = {0x3d80, 0x3e80, 0x3f40, 0x3fa0, 0x3fe0, 0x4020, 0x4060, 0x40a0};

using H32 = Lanes<uint16_t, 2 * kLanes>;

// Rounds sixteen magnitudes to the grid of E2M1, ties to the even code. The grid has one bit of
// mantissa and steps of at least 0.5, and larger values become 6. Adding a large number rounds off
// the bits below the step.
inline F16 round_to_grid(F16 value) {
  const F16 binade = bits_as<F16>(bits_as<I16>(value) & 0x7f800000);
  const F16 room = max(binade, splat(1.0f)) * splat(6291456.0f);  // 1.5 * 2^22
  return min((value + room) - room, splat(6.0f));
}

// The index 0..7 of a grid value.
inline I16 grid_index(F16 value) {
  const I16 bits = bits_as<I16>(value) >> 22;           // exponent and first bit of the mantissa
  return max(bits - 252, bits_as<I16>(bits != 0) & 1);  // Clang for Windows compares to long
}

// kLow of each index: 0x3ee0 + 0x40 * index, minus 0x160, 0xa0 and 0x20 for the indices 0, 1 and 2.
inline H32 low_of(H32 index) {
  using S32 = Lanes<int16_t, 2 * kLanes>;
  const auto at = bits_as<S32>(index);
  const auto less = ((at < 1) & 0xc0) + ((at < 2) & 0x80) + ((at < 3) & 0x20);
  return (index << 6) + 0x3ee0 - bits_as<H32>(less);
}

// A row of a tile's codes, in the low four bits of each 16-bit lane.
inline H32 row_of_codes(const uint8_t* codes, int row) {
  return load_as<H32>(codes + row / 4 * 64) >> (row % 4 * 4);
}

// The magnitudes and signs of input k for sixteen outputs, from the tile's row of BF16 pairs.
inline I16 pair_member(const uint16_t* tile, int k) {
  const U16 pairs = load_as<U16>(tile + k / 2 * 32);
  return bits_as<I16>(k % 2 ? pairs >> 16 : pairs & 0xffff);
}

// The scales that a format tries, in units of E8M3 (BF16 bits >> 4), relative to the block's
// largest magnitude & mask. The first one with the least error is chosen.
struct Candidates {
  int mask, count;
  int offsets[13];
};
constexpr Candidates kCandidates[] = {
    {~7, 1, {-16}},           // kMxfp4Floor
    {~7, 3, {-16, -24, -8}},  // kMxfp4
    {~0,
     13,
     {-26, -25, -24, -23, -22, -21, -20, -19, -18, -17, -16, -15, -kLeastBelowLargest}},  // kFp4
};

// The blocks of a tile; each lane is an output. Its magnitudes are divided by the greatest power of
// two that does not exceed the largest of them. Quotients below 2^-40 become zero, so that no
// square is subnormal.
struct TileBlocks {
  I16 largest{};   // BF16 bits
  F16 at[kBlock];  // [k]

  explicit TileBlocks(const uint16_t* tile) {
    I16 bits[kBlock];
    for (int k = 0; k < kBlock; ++k) {
      bits[k] = pair_member(tile, k) & kBf16MagnitudeMask;
      largest = max(bits[k], largest);
    }
    const I16 exponent = largest & 0x7f80, least = max(exponent - (40 << 7), splat_int(0x80));
    for (int k = 0; k < kBlock; ++k)
      at[k] = select(bits[k] < least, F16{}, bits_as<F16>((bits[k] - exponent + 0x3f80) << 16));
  }

  // A scale in E8M3, divided by the same power of two. It is at most 2^64, where all magnitudes
  // already round to zero.
  F16 divided(I16 scale) const {
    const I16 bits = (scale << 4) - (largest & 0x7f80) + 0x3f80;
    return bits_as<F16>(min(bits, splat_int(0x5f80)) << 16);
  }
};

// The squared error of each block: those of its inputs times their importance, summed in the order
// of k.
inline F16 squared_error(const TileBlocks& blocks, F16 scale, const float* importance) {
  const F16 inverse = splat(1.0f) / scale;
  F16 sum{};
  for (int k = 0; k < kBlock; ++k) {
    const F16 error = round_to_grid(blocks.at[k] * inverse) * scale - blocks.at[k];
    sum = sum + error * error * splat(importance[k]);
  }
  return sum;
}

// The scale of each output, in E8M3.
inline I16 choose_scales(const TileBlocks& blocks, const TileScales& scales) {
  const int first = scales.code.first(), last = first + 255 * scales.code.step();
  const I16 least = splat_int(first < kLeastScale ? kLeastScale : first);
  const I16 most = splat_int(last < kMostScale ? last : kMostScale);
  const Candidates& candidates = kCandidates[static_cast<int>(scales.format)];
  const I16 top = (blocks.largest >> 4) & candidates.mask;
  const auto candidate = [&](int i) { return max(min(top + candidates.offsets[i], most), least); };
  I16 best = candidate(0);
  if (candidates.count == 1) return best;
  F16 least_error = squared_error(blocks, blocks.divided(best), scales.importance);
  for (int i = 1; i < candidates.count; ++i) {
    const I16 scale = candidate(i);
    const F16 error = squared_error(blocks, blocks.divided(scale), scales.importance);
    const auto better = error < least_error;
    best = select(convert<I16>(better), scale, best);
    least_error = select(better, error, least_error);
  }
  return best;
}

// Rounds each weight to the nearest code.
struct NearestCodes {
  const TileBlocks& blocks;
  F16 inverse;  // of the scales, divided by the same power of two as the blocks

  I16 next(int k, I16 weights) {
    return grid_index(round_to_grid(blocks.at[k] * inverse)) | (weights & 0x8000) >> 12;
  }
};

// Rounds each weight, plus the correction for the errors of earlier weights, to a code whose
// residual fits. A weight that is a patch with every code may take any code of either sign.
class FeedbackCodes {
 public:
  FeedbackCodes(const TileFeedback& feedback, I16 scale)
      : feedback_(feedback),
        scale_(bits_as<F16>(scale << 20)),
        inverse_(splat(1.0f) / scale_),
        shift_((scale << 4) - 0x3f80) {}

  I16 next(int k, I16 weights) {
    const I16 from_low = (weights & kBf16MagnitudeMask) - shift_;
    I16 least{}, most{};
#pragma GCC unroll 8
    for (int index = 0; index < 8; ++index) {
      least = least + ((from_low > kLow[index] + 255) & 1);
      if (index > 0) most = most + ((from_low >= kLow[index]) & 1);
    }
    const I16 is_patch = (least > most) | (from_low < kLow[0]);
    const F16 value = bits_as<F16>(weights << 16), wanted = value + load(pending(k));
    const F16 scaled = min(max(wanted * inverse_, splat(-8.0f)), splat(8.0f));  // 8 if NaN
    const I16 sign = select(is_patch, bits_as<I16>(scaled), weights << 16) & kSign;
    const F16 along = max(bits_as<F16>(bits_as<I16>(scaled) ^ sign), F16{});
    const I16 nearest = grid_index(round_to_grid(along));
    const I16 index = select(is_patch, nearest, max(min(nearest, most), least));
    const F16 rounded = bits_as<F16>(bits_as<I16>(grid_value(index)) | sign) * scale_;
    store(errors_ + k * kPanel, value - rounded);
    for (int later = k + 1; later < kBlock; ++later) add(k, later);
    return index | (sign >> 28 & 8);
  }

  // Passes the errors of the tile's weights on to the later inputs of the group.
  void finish() {
    for (int64_t later = kBlock; later < feedback_.inputs; later += 4) {
      F16 sums[4];
      for (int i = 0; i < 4; ++i) sums[i] = load(pending(later + i));
      for (int k = 0; k < kBlock; ++k) {
        const F16 error = load(errors_ + k * kPanel);
        for (int i = 0; i < 4; ++i) sums[i] = sums[i] + error * splat(factor(k, later + i));
      }
      for (int i = 0; i < 4; ++i) store(pending(later + i), sums[i]);
    }
  }

 private:
  static constexpr int32_t kSign = INT32_MIN;

  // 0, 0.5, 1, 1.5, 2, 3, 4, 6.
  static F16 grid_value(I16 index) {
    const I16 large = (index << 22) + (126 << 23);  // from 1 on
    const I16 half = (index == 1) & 0x3f000000;
    return bits_as<F16>(select(index > 1, large, half));
  }

  float* pending(int64_t input) const { return feedback_.pending + input * kPanel; }
  float factor(int k, int64_t later) const {
    return feedback_.factors[k * feedback_.stride + later];
  }
  void add(int k, int later) {
    store(pending(later),
          load(pending(later)) + load(errors_ + k * kPanel) * splat(factor(k, later)));
  }

  const TileFeedback& feedback_;
  F16 scale_, inverse_;
  I16 shift_;
  alignas(64) float errors_[kTileWeights];
};

// Writes codes and residuals. misfits[row] gets a bit for each weight of a row of pairs whose
// residual does not fit into a byte: even k in the lower half, odd k in the upper half.
template <class Codes>
void write_codes(const uint16_t* tile, I16 scale, Codes& codes, const TileOut& out,
                 uint32_t* misfits) {
  const I16 shift = ((scale << 4) - 0x3f80) & 0xffff;
  const H32 shifts = bits_as<H32>(shift | shift << 16);
  for (int group = 0; group < kBlock / 8; ++group) {
    U16 words{};  // codes of four rows, even k in the lower half
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int row = group * 4 + i;
      const U16 pairs = load_as<U16>(tile + row * 32), magnitudes = pairs & 0x7fff7fffu;
      const I16 even = codes.next(row * 2, bits_as<I16>(pairs & 0xffff));
      const I16 odd = codes.next(row * 2 + 1, bits_as<I16>(pairs >> 16));
      const U16 both = bits_as<U16>(even | odd << 16);
      words |= both << (4 * i);
      const U16 residuals =
          bits_as<U16>(bits_as<H32>(magnitudes) - low_of(bits_as<H32>(both) & 7) - shifts);
      const I16 fits_even = (bits_as<I16>(residuals) & 0xff00) == 0;
      const I16 fits_odd = (bits_as<I16>(residuals >> 16) & 0xff00) == 0;
      misfits[row] = lane_bits(~fits_even) | lane_bits(~fits_odd) << 16;
      const U16 kept = residuals & 0x00ff00ffu;
      store_as(out.residuals + row * 32, convert<H16>(kept | kept >> 8));
    }
    store_as(out.codes + group * 64, words);
  }
}

// Writes the patches of the misfits; returns their number, or kNoPatch like encode_tile().
inline int write_patches(const uint16_t* tile, const uint32_t* misfits, uint16_t* out) {
  int patches = 0;
  for (int row = 0; row < kBlock / 2; row += 2) {
    uint64_t left = misfits[row] | static_cast<uint64_t>(misfits[row + 1]) << 32;
    for (; left != 0; left &= left - 1) {
      const int bit = __builtin_ctzll(left);
      const int at = (row + bit / 32) * 32 + bit % 16 * 2 + bit / 16 % 2;
      if ((tile[at] & 0x4000) != 0) return kNoPatch;
      out[patches++] =
          static_cast<uint16_t>(at << 7 | (tile[at] >> 15) << 6 | (tile[at] >> 8 & 0x3f));
    }
  }
  return patches;
}

int encode_tile(const uint16_t* tile, const TileScales& scales, const TileFeedback* feedback,
                const TileOut& out) {
  const TileBlocks blocks(tile);
  const I16 scale = choose_scales(blocks, scales);
  const I16 bytes = (scale - scales.code.first()) >> static_cast<int>(scales.code.shift - 20);
  store_as(out.scales, convert<Lanes<uint8_t, kPanel>>(bytes));
  uint32_t misfits[kBlock / 2];
  if (feedback == nullptr) {
    NearestCodes codes{blocks, splat(1.0f) / blocks.divided(scale)};
    write_codes(tile, scale, codes, out, misfits);
  } else {
    FeedbackCodes codes(*feedback, scale);
    write_codes(tile, scale, codes, out, misfits);
    codes.finish();
  }
  return write_patches(tile, misfits, out.patches);
}

// For each code, its sign and the BF16 bits of its least magnitude at scale byte 0, modulo 2^16.
// The table holds them twice, because the permutation reads five bits of an index.
struct CodeWords {
  alignas(64) uint16_t word[32];
  constexpr CodeWords() : word() {
    for (int i = 0; i < 32; ++i)
      word[i] = static_cast<uint16_t>(kLow[i & 7] - (127 << 7) + ((i >> 3 & 1) << 15));
  }
};
constexpr CodeWords kCodeWords;

// Decodes one tile of MXFP4 weights with scales from 2 to 252. The BF16 bits of a weight are those
// of its grid value, ((code & 7) << 6) + (126 << 7) except for 0 and 1/2, with the scale added to
// the exponent. The halves of a lane hold two weights of an output.
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
  const uint8_t* residuals = w.residuals + tile * kTileWeights;
  const U16 scales = convert<U16>(load_as<Lanes<uint8_t, kPanel>>(w.scales + tile * kPanel));
  const U16 shift = ((scales << (w.scale.shift - 16)) + (w.scale.base >> 16) - 0x3f80) & 0xffff;
  const H32 shifts = bits_as<H32>(shift | shift << 16);
  for (int row = 0; row < kBlock / 2; ++row) {
    const H32 code = row_of_codes(codes, row);
    const U16 bytes = convert<U16>(load_as<H16>(residuals + row * 32));
    const H32 residual = bits_as<H32>((bytes | bytes << 8) & 0x00ff00ffu);
    store_as(out + row * 32, low_of(code & 7) + shifts + residual + ((code & 8) << 12));
  }
  PatchesBySixteen<InTileOrder> patches;
  patches.begin_tile(w, tile);
  patches.apply(out);
}

}  // namespace
}  // namespace specqd
