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

void prepare_draft(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  auto* values = reinterpret_cast<int8_t*>(row);
  auto* scales = reinterpret_cast<float*>(row + tiles * kBlock);
  auto* corrections = reinterpret_cast<int32_t*>(row + tiles * (kBlock + 4));
  for (int64_t t = 0; t < tiles; ++t) {
    F16 part[2];
    for (int h = 0; h < 2; ++h) {
      const int64_t at = t * kBlock + h * kLanes;
      const int64_t rest = inputs - at;
      part[h] = rest >= kLanes ? load(x + at) : load_part(x + at, rest > 0 ? rest : 0, 0.0f);
    }
    const float largest = max_lanes(max(max(part[0], -part[0]), max(part[1], -part[1])));
    const bool usable = largest > 0.0f && largest < 3.0e38f;  // else the block is zero
    const F16 inverse = splat(usable ? 127.0f / largest : 0.0f);
    int32_t quantized[kBlock], sum = 0;
    for (int h = 0; h < 2; ++h) {
      const F16 scaled = part[h] * inverse;
      const I16 whole = to_int(round_even(select(scaled == scaled, scaled, F16{})));
      store_as(quantized + h * kLanes, whole);
    }
    for (int k = 0; k < kBlock; ++k) {
      sum += quantized[k];
      values[t * kBlock + k] = static_cast<int8_t>(quantized[k / 8 * 8 + kNibbleOrder[k % 8]]);
    }
    scales[t] = usable ? largest / 127.0f * 0.5f : 0.0f;
    corrections[t] = -kUnsignedOffset * sum;
  }
}

// --- Exact reading ------------------------------------------------------------------------------

constexpr int kTilesAtOnce = 8;  // decoded into the first-level cache before they are multiplied

// out[m][0..16) += rows of `tiles` BF16 tiles, for Rows rows at once.
template <int Rows>
inline void accumulate_rows(const uint16_t* tile, int64_t tiles, const uint8_t* x, size_t x_stride,
                            float* out, int64_t out_stride) {
  F16 total[Rows];
  for (int m = 0; m < Rows; ++m) total[m] = load(out + m * out_stride);
  for (int64_t t = 0; t < tiles; ++t) {
    F16 even[Rows] = {}, odd[Rows] = {};
    for (int k = 0; k < kBlock; k += 2) {
      const U16 pairs = load_as<U16>(tile + t * kTileWeights + k * kPanel);
      const F16 w_even = bits_as<F16>(pairs << 16), w_odd = bits_as<F16>(pairs & 0xffff0000u);
      for (int m = 0; m < Rows; ++m) {
        const float* inputs = reinterpret_cast<const float*>(x + m * x_stride) + t * kBlock + k;
        even[m] = fma_bf16(w_even, splat(inputs[0]), even[m]);
        odd[m] = fma_bf16(w_odd, splat(inputs[1]), odd[m]);
      }
    }
    for (int m = 0; m < Rows; ++m) total[m] = total[m] + (even[m] + odd[m]);
  }
  for (int m = 0; m < Rows; ++m) store(out + m * out_stride, total[m]);
}

void accumulate_plain(const uint16_t* plain, int64_t tiles, const PreparedRows& x, float* out,
                      int64_t out_stride) {
  int64_t m = 0;
  for (; m + 4 <= x.count; m += 4)
    accumulate_rows<4>(plain, tiles, x.data + m * x.stride, x.stride, out + m * out_stride,
                       out_stride);
  for (; m < x.count; ++m)
    accumulate_rows<1>(plain, tiles, x.data + m * x.stride, x.stride, out + m * out_stride,
                       out_stride);
}

void exact_product(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                   float* out, int64_t out_stride) {
  alignas(64) uint16_t decoded[kTilesAtOnce * kTileWeights];
  for (int64_t p = first; p < last; ++p) {
    float* const panel_out = out + (p - first) * kPanel;
    for (int64_t m = 0; m < x.count; ++m) store(panel_out + m * out_stride, F16{});
    for (int64_t t = 0; t < w.tiles; t += kTilesAtOnce) {
      const int64_t count = w.tiles - t < kTilesAtOnce ? w.tiles - t : kTilesAtOnce;
      const uint16_t* tiles = decoded;
      if (w.plain != nullptr) {
        tiles = w.plain + (p * w.tiles + t) * kTileWeights;
      } else {
        for (int64_t i = 0; i < count; ++i)
          decode_tile(w, p * w.tiles + t + i, decoded + i * kTileWeights);
      }
      const PreparedRows block{x.data + static_cast<size_t>(t) * kBlock * sizeof(float), x.stride,
                               x.count};
      accumulate_plain(tiles, count, block, panel_out, out_stride);
    }
  }
}

// --- Draft reading ------------------------------------------------------------------------------

constexpr int8_t kDoubledE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline F16 scale_values(const uint8_t* scales) {
  U16 bits;
  for (int n = 0; n < kPanel; ++n) bits[n] = static_cast<uint32_t>(scales[n]) << 23;
  return bits_as<F16>(bits);
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
