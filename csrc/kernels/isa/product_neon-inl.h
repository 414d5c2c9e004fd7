// The products on 128-bit registers: four registers hold the sixteen outputs of a panel.
#pragma once

#include "kernels/isa/neon-inl.h"
#include "kernels/isa/prepare_neon-inl.h"
#include "kernels/isa/product-inl.h"
#include "kernels/isa/product_many-inl.h"
#include "kernels/isa/table-inl.h"

namespace specqd {
namespace {

// Exact precision.

// The low and the high bytes of kCodeWords.
struct CodeBytes {
  alignas(16) uint8_t low[16], high[16];
  constexpr CodeBytes() : low(), high() {
    for (int i = 0; i < 16; ++i) {
      low[i] = static_cast<uint8_t>(kCodeWords.word[i]);
      high[i] = static_cast<uint8_t>(kCodeWords.word[i] >> 8);
    }
  }
};
constexpr CodeBytes kCodeBytes;

// The BF16 bits of a tile's scales, once for each weight of a pair: four outputs per register.
struct NeonScales {
  uint16x8_t quarter[kQuarters];
  NeonScales() = default;
  [[gnu::always_inline]] NeonScales(const PackedMatrix& w, int64_t tile) {
    const int16x8_t shift = vdupq_n_s16(static_cast<int16_t>(w.scale.shift - 16));
    const uint16x8_t base = vdupq_n_u16(static_cast<uint16_t>(w.scale.base >> 16));
    const uint8x16_t bytes = vld1q_u8(w.scales + tile * kPanel);
    const uint8x16_t twice[2] = {vzip1q_u8(bytes, bytes), vzip2q_u8(bytes, bytes)};
    for (int half = 0; half < 2; ++half) {
      quarter[half * 2] = vaddq_u16(vshlq_u16(vmovl_u8(vget_low_u8(twice[half])), shift), base);
      quarter[half * 2 + 1] = vaddq_u16(vshlq_u16(vmovl_high_u8(twice[half]), shift), base);
    }
  }
};

// Decodes eight outputs of four rows at a time.
class NeonDecoder : public NestedDecoder<NeonDecoder, NeonScales, PatchesInTurn> {
 public:
  using NestedDecoder::NestedDecoder;

  [[gnu::always_inline]] void whole_tile() {
    decode();
    end_tile();
  }

  // Decodes a tile but for its patches. There are none after the last tile.
  [[gnu::always_inline]] PatchesLeft tile_without_patches(uint8_t* unused) {
    if (is_done()) return PatchesLeft(unused);
    decode();
    const PatchesLeft left = patches_.left(out_, unused);
    next_tile();
    return left;
  }

 private:
  [[gnu::always_inline]] void decode() const {
    const Parts parts{
        codes_, residuals_, out_, scales_, load_once(kCodeBytes.low), load_once(kCodeBytes.high)};
    repeat<4>([&](auto group) __attribute__((always_inline)) {
      parts.decode<group, 0>();
      parts.decode<group, 1>();
    });
  }

  // A table that GCC keeps in a register, rather than load it before each use.
  [[gnu::always_inline]] static uint8x16_t load_once(const uint8_t* table) {
    uint8x16_t loaded = vld1q_u8(table);
    asm("" : "+w"(loaded));
    return loaded;
  }

  // A copy of the decoder's members that need not be loaded again after each store.
  struct Parts {
    const uint8_t *codes, *residuals;
    uint16_t* out;
    NeonScales scales;
    uint8x16_t low_bytes, high_bytes;

    // A word's low byte holds the codes of the rows 0 and 1 of the group, its high byte those of
    // the rows 2 and 3.
    template <int group, int half>
    [[gnu::always_inline]] void decode() const {
      const uint8_t* const codes_at = codes + group * 64 + half * 32;
      const uint8_t* const residuals_at = residuals + group * 128 + half * 16;
      uint16_t* const out_at = out + group * 128 + half * 16;
      if (half == 0) fetch(codes_at + kExactTilesAhead * kTileCodes);
      fetch(residuals_at + half * 48 + kExactTilesAhead * kTileWeights);
      const uint8x16x2_t bytes = vld2q_u8(codes_at);
      repeat<4>([&](auto row) __attribute__((always_inline)) {
        const uint8x16_t two = bytes.val[row / 2];
        const uint8x16_t code = row % 2 ? vshrq_n_u8(two, 4) : vandq_u8(two, vdupq_n_u8(15));
        const uint8x16_t low = vqtbl1q_u8(low_bytes, code);
        const uint8x16_t high = vqtbl1q_u8(high_bytes, code);
        const uint8x16_t residual = vld1q_u8(residuals_at + row * 32);
        const uint16x8_t first = vaddw_u8(scales.quarter[half * 2], vget_low_u8(residual));
        const uint16x8_t second = vaddw_high_u8(scales.quarter[half * 2 + 1], residual);
        vst1q_u16(out_at + row * 32, vaddq_u16(first, vreinterpretq_u16_u8(vzip1q_u8(low, high))));
        vst1q_u16(out_at + row * 32 + 8,
                  vaddq_u16(second, vreinterpretq_u16_u8(vzip2q_u8(low, high))));
      });
      keep_loads_below();
    }
  };
};

void decode_tile_neon(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  if (w.residuals == nullptr) return decode_tile(w, tile, out);
  NeonDecoder(w, tile, 1, out).whole_tile();
}

// What is left of work that has no patches.
struct NoPatches {
  void step() const {}
};

// Works on the next tile, and returns the steps that are left to be done beside a multiplication.
template <class Ahead>
[[gnu::always_inline]] inline NoPatches begin_beside(Ahead& ahead, uint8_t*) {
  if (!ahead.is_done()) ahead.whole_tile();
  return {};
}
[[gnu::always_inline]] inline PatchesLeft begin_beside(NeonDecoder& ahead, uint8_t* unused) {
  return ahead.tile_without_patches(unused);
}

struct NeonExact {
  static constexpr int kRows = 8;
  static constexpr size_t kBlockBytes = kFloatBlockBytes;
  using Decoder = NeonDecoder;

  // Two chains for each output: 8 registers at one row, else 12 to 16. Multiply-adds take four
  // cycles, and cores with two or four of them per cycle need 8 or 16 chains.
  template <int Rows, class Ahead>
  [[gnu::noinline]] static void accumulate(const uint16_t* tile, int64_t tiles,
                                           const PreparedRows& x, float* out, int64_t out_stride,
                                           const Ahead& given) {
    auto ahead = given.begin();
    constexpr int kAtOnce = quarters_at_once(2 * Rows);
    const float* row[Rows];
    repeat<Rows>([&](auto m) __attribute__((always_inline)) {
      row[m] = reinterpret_cast<const float*>(x.data + static_cast<size_t>(m) * x.stride);
    });
    uint8_t unused;
    for (int64_t t = 0; t < tiles; ++t) {
      auto patches = begin_beside(ahead, &unused);
#pragma GCC unroll 1
      for (int first = 0; first < kQuarters; first += kAtOnce)
        multiply<Rows, kAtOnce>(tile + first * 8, row, out + first * 4, out_stride, patches);
      repeat<Rows>([&](auto m) __attribute__((always_inline)) { row[m] += kBlock; });
      tile += kTileWeights;
    }
    while (!ahead.is_done()) ahead.whole_tile();
  }

 private:
  // Multiplies `Quarters` quarters of a tile by all rows; one load of four inputs serves them all.
  // Patches of another tile, in steps between the products, take no time of the vector units.
  template <int Rows, int Quarters, class Patches>
  [[gnu::always_inline]] static void multiply(const uint16_t* tile, const float* const (&row)[Rows],
                                              float* out, int64_t out_stride, Patches& patches) {
    constexpr int kEvery = kBlock / 4 * (kQuarters / Quarters) / PatchesLeft::kSteps;
    float32x4_t even[Rows][Quarters], odd[Rows][Quarters];
    repeat<Rows>([&](auto m) __attribute__((always_inline)) {
      repeat<Quarters>(
          [&](auto q) __attribute__((always_inline)) { even[m][q] = odd[m][q] = vdupq_n_f32(0); });
    });
    repeat<kBlock / 4>([&](auto four) __attribute__((always_inline)) {
      float32x4_t inputs[Rows];
      repeat<Rows>(
          [&](auto m) __attribute__((always_inline)) { inputs[m] = vld1q_f32(row[m] + four * 4); });
      repeat<2 * Quarters>([&](auto step) __attribute__((always_inline)) {
        constexpr int pair = step / Quarters, q = step % Quarters;
        const uint32x4_t pairs =
            vreinterpretq_u32_u16(vld1q_u16(tile + four * 64 + pair * 32 + q * 8));
        const float32x4_t low = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
        const float32x4_t high = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
        repeat<Rows>([&](auto m) __attribute__((always_inline)) {
          even[m][q] = vfmaq_laneq_f32(even[m][q], low, inputs[m], 2 * pair);
          odd[m][q] = vfmaq_laneq_f32(odd[m][q], high, inputs[m], 2 * pair + 1);
        });
      });
      if constexpr (four % kEvery == 0) patches.step();
      keep_loads_below();
    });
    for (int m = 0; m < Rows; ++m)
      for (int q = 0; q < Quarters; ++q) {
        float* const total = out + m * out_stride + q * 4;
        vst1q_f32(total, vaddq_f32(vld1q_f32(total), vaddq_f32(even[m][q], odd[m][q])));
      }
  }
};

// fp4 precision.

// Integer sums of four outputs. A lane of the inputs' register holds the four inputs that an
// output's four codes are multiplied by.
#if defined(__ARM_FEATURE_DOTPROD)
struct IntegerSum {
  static constexpr int kRegisters = 1;
  int32x4_t sum = vdupq_n_s32(0);
  template <int lane>
  [[gnu::always_inline]] void add(int8x16_t weights, int8x16_t inputs) {
    sum = vdotq_laneq_s32(sum, weights, inputs, lane);
  }
  [[gnu::always_inline]] int32x4_t value() const { return sum; }
};
#else
// Without dot products, an output has four sums of 16 bits, one for each of the four inputs. Each
// is of 8 products of at most 12 * 127 in magnitude, so it fits.
struct IntegerSum {
  static constexpr int kRegisters = 2;
  int16x8_t low = vdupq_n_s16(0), high = vdupq_n_s16(0);
  template <int lane>
  [[gnu::always_inline]] void add(int8x16_t weights, int8x16_t inputs) {
    const int8x16_t four =
        vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(inputs), lane));
    low = vmlal_s8(low, vget_low_s8(weights), vget_low_s8(four));
    high = vmlal_high_s8(high, weights, four);
  }
  [[gnu::always_inline]] int32x4_t value() const {
    return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
  }
};
#endif

// The scales of 4 * Quarters outputs.
template <int Quarters>
[[gnu::always_inline]] inline void load_scales(const uint8_t* scales, ScaleCode code,
                                               float32x4_t (&out)[Quarters]) {
  const auto words =
      convert<Lanes<uint32_t, 4 * Quarters>>(load_as<Lanes<uint8_t, 4 * Quarters>>(scales));
  const auto bits = (words << code.shift) + code.base;
  for (int q = 0; q < Quarters; ++q)
    out[q] = load_as<float32x4_t>(reinterpret_cast<const char*>(&bits) + q * 16);
}

// Adds one block's products to the totals of a part of a panel; codes, scales and totals are those
// of its first output.
template <int Rows, int Quarters>
[[gnu::always_inline]] inline void add_draft_block(const uint8_t* codes, const uint8_t* scales,
                                                   ScaleCode code,
                                                   const uint8_t* const (&row)[Rows], float* out,
                                                   int64_t out_stride) {
  const int8x16_t weights_of = vld1q_s8(kDoubledE2m1);
  IntegerSum sums[Rows][Quarters];
  repeat<2>([&](auto half) __attribute__((always_inline)) {
    int8x16_t inputs[Rows];
    for (int m = 0; m < Rows; ++m)
      inputs[m] = vld1q_s8(reinterpret_cast<const int8_t*>(row[m]) + half * 16);
    repeat<2>([&](auto group) __attribute__((always_inline)) {
      const uint8_t* const at = codes + (half * 2 + group) * 64;
      fetch_codes(at);
      for (int q = 0; q < Quarters; ++q) {
        const uint8x16_t two = vld1q_u8(at + q * 16);
        const int8x16_t low = vqtbl1q_s8(weights_of, vandq_u8(two, vdupq_n_u8(15)));
        const int8x16_t high = vqtbl1q_s8(weights_of, vshrq_n_u8(two, 4));
        for (int m = 0; m < Rows; ++m) sums[m][q].template add<group * 2>(low, inputs[m]);
        for (int m = 0; m < Rows; ++m) sums[m][q].template add<group * 2 + 1>(high, inputs[m]);
      }
      keep_loads_below();
    });
  });
  float32x4_t scale[Quarters];
  load_scales(scales, code, scale);
  for (int m = 0; m < Rows; ++m) {
    const float x_scale = load_as<float>(row[m] + offsetof(DraftBlock, scale));
    for (int q = 0; q < Quarters; ++q) {
      float* const total = out + m * out_stride + q * 4;
      vst1q_f32(total, vfmaq_f32(vld1q_f32(total), vcvtq_f32_s32(sums[m][q].value()),
                                 vmulq_n_f32(scale[q], x_scale)));
    }
  }
}

template <int Rows>
[[gnu::noinline]] void draft_rows_neon(const PackedMatrix& w, int64_t panel, const PreparedRows& x,
                                       float* out, int64_t out_stride) {
  constexpr int kAtOnce = quarters_at_once(IntegerSum::kRegisters * Rows);
  const uint8_t* codes = w.codes + panel * w.tiles * kTileCodes;
  const uint8_t* scales = w.scales + panel * w.tiles * kPanel;
  const ScaleCode code = w.scale;
  const uint8_t* row[Rows];
  for (int m = 0; m < Rows; ++m) {
    row[m] = x.data + static_cast<size_t>(m) * x.stride;
    store(out + m * out_stride, F16{});
  }
  for (int64_t t = 0; t < w.tiles; ++t) {
#pragma GCC unroll 1
    for (int first = 0; first < kQuarters; first += kAtOnce)
      add_draft_block<Rows, kAtOnce>(codes + first * 16, scales + first * 4, code, row,
                                     out + first * 4, out_stride);
    for (int m = 0; m < Rows; ++m) row[m] += sizeof(DraftBlock);
    codes += kTileCodes;
    scales += kPanel;
  }
}

void draft_product_neon(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride) {
  for (int64_t p = first; p < last; ++p)
    for_row_groups<8>(x.count, [&]<int Rows>(int64_t m) {
      draft_rows_neon<Rows>(w, p, rows_from(x, m, 0), out + m * out_stride + (p - first) * kPanel,
                            out_stride);
    });
}

constexpr Kernels neon_table(const char* name) {
  Kernels table = generic_table(name);
  table.prepare_draft = prepare_draft_neon;
  table.decode_tile = decode_tile_neon;
  table.exact_product = exact_product_in_rows<NeonExact>;
  attend_by<accumulate_plain_by<InRowGroups<NeonExact>>, NeonExact::kBlockBytes>(table);
  table.draft_product = draft_product_neon;
  return table;
}

}  // namespace
}  // namespace specqd
