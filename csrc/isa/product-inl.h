// Matrix products in the exact and the draft reading, written for any instruction set.
//
// Exact: for each block of 32 inputs, one chain of fused multiply-adds over even k, one over odd k;
// their sum is added to the accumulator. That is the order of AMX's tdpbf16ps.
// Draft: for each block, an exact integer sum of int8 inputs times doubled E2M1 values, then one
// fused multiply-add with the two scales. Blocks follow one another in the order of K.
#pragma once

#include "isa/lanes-inl.h"
#include "isa/nested-inl.h"
#include "isa/ops-inl.h"
#include "kernels.h"

namespace specqd {
namespace {

// --- Prepared rows ------------------------------------------------------------------------------

inline size_t padded_row(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Exact: fp32 values that were rounded to BF16, [tiles * 32].
size_t exact_row_bytes(int64_t tiles) {
  return static_cast<size_t>(tiles) * kBlock * sizeof(float);
}

void prepare_exact(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  auto* out = reinterpret_cast<float*>(row);
  int64_t i = 0;
  for (; i + kLanes <= inputs; i += kLanes) store(out + i, round_to_bf16(load(x + i)));
  for (; i < tiles * kBlock; i += kLanes) {
    const int64_t rest = inputs > i ? inputs - i : 0;
    store(out + i, round_to_bf16(load_part(x + i, rest, 0.0f)));
  }
}

// Draft: int8 inputs [tiles * 32], then fp32 scales [tiles], then int32 corrections [tiles]. Inputs
// stand in the order of the code plane's nibbles: of eight k, the low nibbles of four bytes hold
// 0 4 1 5 and the high ones 2 6 3 7. The scale is halved for the doubled E2M1 values, and the
// correction is -12 times the block's sum, for kernels that add 12 to make weights unsigned.
constexpr int kNibbleOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr int kUnsignedOffset = 12;

struct DraftRow {
  const int8_t* inputs;
  const float* scales;
  const int32_t* corrections;
  DraftRow(const uint8_t* row, int64_t tiles)
      : inputs(reinterpret_cast<const int8_t*>(row)),
        scales(reinterpret_cast<const float*>(row + tiles * kBlock)),
        corrections(reinterpret_cast<const int32_t*>(row + tiles * (kBlock + 4))) {}
};

size_t draft_row_bytes(int64_t tiles) {
  return padded_row(static_cast<size_t>(tiles) * (kBlock + sizeof(float) + sizeof(int32_t)));
}

// Folds thirty-two lanes of integers, in any order: the results are exact.
template <class F>
inline int32_t fold_lanes(I16 v, const F& f) {
  using I8 = int32_t __attribute__((vector_size(32)));
  using I4 = int32_t __attribute__((vector_size(16)));
  struct Eight {
    I8 low, high;
  };
  struct Four {
    I4 low, high;
  };
  const auto eight = bits_as<Eight>(v);
  const auto four = bits_as<Four>(f(eight.low, eight.high));
  const I4 last = f(four.low, four.high);
  const auto scalar = [&](int32_t a, int32_t b) { return f(I4{a}, I4{b})[0]; };
  return scalar(scalar(last[0], last[1]), scalar(last[2], last[3]));
}

// Puts the bytes of each eight in the order kNibbleOrder: exchanges 2 3 with 4 5, then 1 with 2 and
// 5 with 6.
using Q4 = uint64_t __attribute__((vector_size(32)));
inline Q4 to_nibble_order(Q4 v) {
  const Q4 middle = (v ^ (v >> 16)) & 0x00000000ffff0000u;
  v = v ^ middle ^ (middle << 16);
  const Q4 inner = (v ^ (v >> 8)) & 0x0000ff000000ff00u;
  return v ^ inner ^ (inner << 8);
}

// Blocks whose largest magnitude lies outside are zero: their scale would not be a normal number.
// Compared as bits, where a NaN is larger than any number.
constexpr int32_t kLeastDraftInput = 27 << 23;      // 2^-100
constexpr int32_t kLargestDraftInput = 0x7f7fffff;  // the largest finite fp32

void prepare_draft(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  using B16 = int8_t __attribute__((vector_size(16)));
  auto* scales = reinterpret_cast<float*>(row + tiles * kBlock);
  auto* corrections = reinterpret_cast<int32_t*>(row + tiles * (kBlock + 4));
  for (int64_t t = 0; t < tiles; ++t) {
    F16 part[2];
    I16 magnitude[2];
    for (int h = 0; h < 2; ++h) {
      const int64_t at = t * kBlock + h * kLanes;
      const int64_t rest = inputs - at;
      part[h] = rest >= kLanes ? load(x + at) : load_part(x + at, rest > 0 ? rest : 0, 0.0f);
      magnitude[h] = bits_as<I16>(part[h]) & 0x7fffffff;
    }
    const auto larger = [](auto a, auto b) {
      const auto mask = a > b;
      return (a & mask) | (b & ~mask);
    };
    const int32_t largest_bits = fold_lanes(larger(magnitude[0], magnitude[1]), larger);
    if (largest_bits < kLeastDraftInput || largest_bits > kLargestDraftInput) {
      std::memset(row + t * kBlock, 0, kBlock);
      scales[t] = 0.0f;
      corrections[t] = 0;
      continue;
    }
    const float largest = bits_as<float>(largest_bits);
    const F16 inverse = splat(127.0f / largest);
    I16 whole[2];
    struct {
      B16 half[2];
    } bytes;
    for (int h = 0; h < 2; ++h) {
      whole[h] = to_int(round_even(part[h] * inverse));
      bytes.half[h] = __builtin_convertvector(whole[h], B16);
    }
    store_as(row + t * kBlock, to_nibble_order(bits_as<Q4>(bytes)));
    scales[t] = largest / 127.0f * 0.5f;
    corrections[t] =
        -kUnsignedOffset * fold_lanes(whole[0] + whole[1], [](auto a, auto b) { return a + b; });
  }
}

// --- Exact reading ------------------------------------------------------------------------------

constexpr int kTilesAtOnce = 8;  // decoded into the first-level cache before they are multiplied

// Calls f<Rows>(first row) for groups of at most `Most` rows.
template <int Most, class F>
inline void for_row_groups(int64_t rows, const F& f, int64_t from = 0) {
  for (; rows - from >= Most; from += Most) f.template operator()<Most>(from);
  if constexpr (Most > 1) for_row_groups<Most - 1>(rows, f, from);
}

inline PreparedRows rows_from(const PreparedRows& x, int64_t row, size_t bytes) {
  return {x.data + static_cast<size_t>(row) * x.stride + bytes, x.stride, x.count - row};
}

// The exact product of an instruction set S, which provides
//   kRows, kPanels         rows and panels that it multiplies at once, at most
//   decode(w, tile, out)   one nested tile with its patches
//   accumulate<Rows, Panels>(tiles, step, count, x, out, out_stride)
//                          out[m][16 * i + n] += `count` tiles of panel i, `step` weights apart
// A group of tiles is decoded before it is multiplied: a wide load that follows too closely on the
// narrow store of a patch would wait for it.
template <class S>
void exact_product_by(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                      float* out, int64_t out_stride) {
  alignas(64) uint16_t decoded[S::kPanels * kTilesAtOnce * kTileWeights];
  for (int64_t m = 0; m < x.count; ++m)
    std::memset(out + m * out_stride, 0, static_cast<size_t>(last - first) * kPanel * 4);
  const auto multiply = [&]<int Panels>(int64_t p) {
    for (int64_t t = 0; t < w.tiles; t += kTilesAtOnce) {
      const int64_t count = w.tiles - t < kTilesAtOnce ? w.tiles - t : kTilesAtOnce;
      const int64_t tile = p * w.tiles + t;
      const uint16_t* tiles = decoded;
      int64_t step = kTilesAtOnce * kTileWeights;
      if (w.plain != nullptr) {
        tiles = w.plain + tile * kTileWeights;
        step = w.tiles * kTileWeights;
      } else {
        for (int64_t i = 0; i < Panels; ++i)
          for (int64_t j = 0; j < count; ++j)
            S::decode(w, tile + i * w.tiles + j, decoded + i * step + j * kTileWeights);
      }
      for_row_groups<S::kRows>(x.count, [&]<int Rows>(int64_t m) {
        S::template accumulate<Rows, Panels>(
            tiles, step, count, rows_from(x, m, static_cast<size_t>(t) * kBlock * sizeof(float)),
            out + m * out_stride + (p - first) * kPanel, out_stride);
      });
    }
  };
  int64_t p = first;
  for (; p + S::kPanels <= last; p += S::kPanels) multiply.template operator()<S::kPanels>(p);
  for (; p < last; ++p) multiply.template operator()<1>(p);
}

template <class S>
void accumulate_plain_by(const uint16_t* plain, int64_t tiles, const PreparedRows& x, float* out,
                         int64_t out_stride) {
  for_row_groups<S::kRows>(x.count, [&]<int Rows>(int64_t m) {
    S::template accumulate<Rows, 1>(plain, 0, tiles, rows_from(x, m, 0), out + m * out_stride,
                                    out_stride);
  });
}

// The exact sum on sixteen virtual lanes.
struct GenericExact {
  static constexpr int kRows = 4, kPanels = 1;

  static void decode(const PackedMatrix& w, int64_t tile, uint16_t* out) {
    decode_tile(w, tile, out);
  }

  template <int Rows, int Panels>
  static void accumulate(const uint16_t* tile, int64_t, int64_t tiles, const PreparedRows& x,
                         float* out, int64_t out_stride) {
    F16 total[Rows];
    for (int m = 0; m < Rows; ++m) total[m] = load(out + m * out_stride);
    for (int64_t t = 0; t < tiles; ++t) {
      F16 even[Rows] = {}, odd[Rows] = {};
      for (int k = 0; k < kBlock; k += 2) {
        const U16 pairs = load_as<U16>(tile + t * kTileWeights + k * kPanel);
        const F16 w_even = bits_as<F16>(pairs << 16), w_odd = bits_as<F16>(pairs & 0xffff0000u);
        for (int m = 0; m < Rows; ++m) {
          const auto* inputs =
              reinterpret_cast<const float*>(x.data + m * x.stride) + t * kBlock + k;
          even[m] = fma_bf16(w_even, splat(inputs[0]), even[m]);
          odd[m] = fma_bf16(w_odd, splat(inputs[1]), odd[m]);
        }
      }
      for (int m = 0; m < Rows; ++m) total[m] = total[m] + (even[m] + odd[m]);
    }
    for (int m = 0; m < Rows; ++m) store(out + m * out_stride, total[m]);
  }
};

// --- Draft reading ------------------------------------------------------------------------------

constexpr int8_t kDoubledE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline F16 scale_values(const uint8_t* scales) {
  using B16 = uint8_t __attribute__((vector_size(16)));
  return bits_as<F16>(__builtin_convertvector(load_as<B16>(scales), U16) << 23);
}

void draft_product(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                   float* out, int64_t out_stride) {
  for (int64_t p = first; p < last; ++p) {
    for (int64_t m = 0; m < x.count; ++m) {
      const DraftRow row(x.data + m * x.stride, w.tiles);
      F16 total{};
      for (int64_t t = 0; t < w.tiles; ++t) {
        const int64_t tile = p * w.tiles + t;
        const uint8_t* codes = w.codes + tile * kTileCodes;
        I16 sum{};
        for (int byte = 0; byte < kTileCodes; ++byte) {
          const int n = byte % 64 / 4, at = byte / 64 * 8 + byte % 4;
          sum[n] += kDoubledE2m1[codes[byte] & 15] * row.inputs[t * kBlock + at] +
                    kDoubledE2m1[codes[byte] >> 4] * row.inputs[t * kBlock + at + 4];
        }
        const F16 scale = scale_values(w.scales + tile * kPanel) * splat(row.scales[t]);
        total = fma(to_float(sum), scale, total);
      }
      store(out + m * out_stride + (p - first) * kPanel, total);
    }
  }
}

}  // namespace
}  // namespace specqd
