// The products on 256-bit registers: two registers hold the sixteen outputs of a panel.
#pragma once

#include "kernels/isa/prepare_avx2-inl.h"
#include "kernels/isa/product-inl.h"
#include "kernels/isa/product_many-inl.h"
#include "kernels/isa/table-inl.h"

namespace specqd {
namespace {

inline __m256i load_32(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Sixteen bytes, repeated in both halves of a register.
inline __m256i table_of(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// The bytes of kCodeWords, low and high.
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

// Exact precision.

class Avx2Decoder {
 public:
  Avx2Decoder(const PackedMatrix& w, int64_t tile, int64_t count, uint16_t* out)
      : w_(w), tile_(tile), end_(tile + count), out_(out) {}

  bool is_done() const { return tile_ >= end_; }
  void row(int) {}
  void end_tile() {}

  void whole_tile() {
    TilePatches<InTileOrder> patches;
    patches.begin_tile(w_, tile_);
    decode_half(0);
    decode_half(1);
    patches.apply(out_);
    ++tile_;
    out_ += kTileWeights;
  }

 private:
  // Decodes eight outputs of all rows. Two of a word's four nibbles are looked up at once: the low
  // ones of its two bytes belong to rows 0 and 2, the high ones to rows 1 and 3. A shuffle first
  // puts the bytes of rows 0 and 1 before those of rows 2 and 3.
  void decode_half(int half) {
    const uint8_t* codes = w_.codes + tile_ * kTileCodes + half * 32;
    const uint8_t* residuals = w_.residuals + tile_ * kTileWeights + half * 16;
    const __m256i low_bytes = table_of(kCodeBytes.low), high_bytes = table_of(kCodeBytes.high);
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i evens_first =
        _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10,
                         12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m128i scales =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w_.scales + tile_ * kPanel + half * 8));
    const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(w_.scale.shift - 16));
    __m256i scale_bits = _mm256_sll_epi32(_mm256_cvtepu8_epi32(scales), shift);
    scale_bits = _mm256_or_si256(scale_bits, _mm256_slli_epi32(scale_bits, 16));
    scale_bits =
        _mm256_add_epi16(scale_bits, _mm256_set1_epi16(static_cast<int16_t>(w_.scale.base >> 16)));
    const auto store_row = [&](int row, __m256i least) {
      const __m256i residual = _mm256_cvtepu8_epi16(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(residuals + row * 32)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out_ + row * 32 + half * 16),
                          _mm256_add_epi16(least, _mm256_add_epi16(scale_bits, residual)));
    };
    for (int group = 0; group < 4; ++group) {
      fetch(codes + group * 64 + kExactTilesAhead * kTileCodes);
      fetch(residuals + group * 128 + half * 48 + kExactTilesAhead * kTileWeights);
      const __m256i bytes = _mm256_shuffle_epi8(load_32(codes + group * 64), evens_first);
      for (int odd = 0; odd < 2; ++odd) {
        const __m256i two = _mm256_and_si256(odd ? _mm256_srli_epi16(bytes, 4) : bytes, nibble);
        const __m256i low = _mm256_shuffle_epi8(low_bytes, two);
        const __m256i high = _mm256_shuffle_epi8(high_bytes, two);
        store_row(group * 4 + odd, _mm256_unpacklo_epi8(low, high));
        store_row(group * 4 + odd + 2, _mm256_unpackhi_epi8(low, high));
      }
    }
  }

  const PackedMatrix& w_;
  int64_t tile_, end_;
  uint16_t* out_;
};

struct Avx2Exact {
  static constexpr int kRows = 2;
  static constexpr size_t kBlockBytes = kFloatBlockBytes;
  using Decoder = Avx2Decoder;

  // A register holds the even and the odd chain of four outputs side by side, so four multiply-adds
  // share one load of a pair of inputs.
  template <int Rows, class Ahead>
  [[gnu::noinline]] static void accumulate(const uint16_t* tile, int64_t tiles,
                                           const PreparedRows& x, float* out, int64_t out_stride,
                                           Ahead ahead) {
    const float* row[Rows];
    for (int m = 0; m < Rows; ++m) row[m] = reinterpret_cast<const float*>(x.data + m * x.stride);
    for (int64_t t = 0; t < tiles; ++t) {
      __m256 chains[Rows][4];
      for (int m = 0; m < Rows; ++m)
        for (__m256& chain : chains[m]) chain = _mm256_setzero_ps();
#pragma GCC unroll 4
      for (int k = 0; k < kBlock; k += 2) {
        const __m256i zero = _mm256_setzero_si256();
        const __m256i left = load_32(tile + k * kPanel), right = load_32(tile + k * kPanel + 16);
        const __m256 weights[4] = {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, left)),
                                   _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, left)),
                                   _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, right)),
                                   _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, right))};
        ahead.row(k / 2);
        for (int m = 0; m < Rows; ++m) {
          const __m256 inputs = _mm256_castpd_ps(_mm256_set1_pd(load_as<double>(row[m] + k)));
          for (int i = 0; i < 4; ++i)
            chains[m][i] = _mm256_fmadd_ps(weights[i], inputs, chains[m][i]);
        }
      }
      for (int m = 0; m < Rows; ++m) {
        for (int half = 0; half < 2; ++half) {
          const __m256 low = chains[m][half * 2], high = chains[m][half * 2 + 1];
          const __m256 sum =
              _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd));
          float* const total = out + m * out_stride + half * 8;
          _mm256_storeu_ps(total, _mm256_add_ps(_mm256_loadu_ps(total), sum));
        }
        row[m] += kBlock;
      }
      tile += kTileWeights;
      ahead.end_tile();
    }
    while (!ahead.is_done()) ahead.whole_tile();
  }
};

void decode_tile_avx2(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  if (w.residuals == nullptr) return decode_tile(w, tile, out);
  Avx2Decoder(w, tile, 1, out).whole_tile();
}

// fp4 precision.

// Integer sums of eight outputs, four inputs at a time. The start value subtracts the 12 that was
// added to each weight.
#if defined(__AVXVNNI__)
constexpr bool kHasByteProducts = true;
struct IntegerSum {
  __m256i sum;
  explicit IntegerSum(int32_t start) : sum(_mm256_set1_epi32(start)) {}
  void add(__m256i weights, __m256i inputs) { sum = _mm256_dpbusd_avx_epi32(sum, weights, inputs); }
  __m256i value() const { return sum; }
};
#else
constexpr bool kHasByteProducts = false;
// Sums in sixteen bits: a pair is at most 2 * 24 * 127 = 6096 in magnitude, so four pairs fit.
struct IntegerSum {
  __m256i sum, short_sum = _mm256_setzero_si256();
  int pending = 0;
  explicit IntegerSum(int32_t start) : sum(_mm256_set1_epi32(start)) {}
  [[gnu::always_inline]] void add(__m256i weights, __m256i inputs) {
    const __m256i pairs = _mm256_maddubs_epi16(weights, inputs);
    short_sum = pending == 0 ? pairs : _mm256_add_epi16(short_sum, pairs);
    if (++pending < 4) return;
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(short_sum, _mm256_set1_epi16(1)));
    pending = 0;
  }
  __m256i value() const { return sum; }
};
#endif

// Multiplies one or both halves of a panel, eight outputs each. If a panel is read once per half,
// the second read comes from the cache.
template <int Rows, int Halves>
[[gnu::noinline]] void draft_rows_avx2(const PackedMatrix& w, int64_t panel, int first_half,
                                       const PreparedRows& x, float* out, int64_t out_stride) {
  const __m256i nibble = _mm256_set1_epi8(15), weights_of = table_of(kUnsignedWeights.of_code);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(w.scale.shift));
  const __m256i base = _mm256_set1_epi32(static_cast<int32_t>(w.scale.base));
  const uint8_t* codes = w.codes + panel * w.tiles * kTileCodes + first_half * 32;
  const uint8_t* scales = w.scales + panel * w.tiles * kPanel + first_half * 8;
  const uint8_t* row[Rows];
  for (int m = 0; m < Rows; ++m) row[m] = x.data + m * x.stride;
  __m256 total[Rows][Halves];
  for (int m = 0; m < Rows; ++m)
    for (__m256& sum : total[m]) sum = _mm256_setzero_ps();
  for (int64_t t = 0; t < w.tiles; ++t) {
    for (int group = 0; group < 4; ++group)
      fetch(codes + group * 64 + kDraftTilesAhead * kTileCodes);
#pragma GCC unroll 2
    for (int half = 0; half < Halves; ++half) {
      __m256i weights[8];
      for (int group = 0; group < 4; ++group) {
        const __m256i both = load_32(codes + group * 64 + half * 32);
        weights[group * 2] = _mm256_shuffle_epi8(weights_of, _mm256_and_si256(both, nibble));
        weights[group * 2 + 1] =
            _mm256_shuffle_epi8(weights_of, _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble));
      }
      const __m128i half_scales =
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + half * 8));
      const __m256 scale = _mm256_castsi256_ps(
          _mm256_add_epi32(_mm256_sll_epi32(_mm256_cvtepu8_epi32(half_scales), shift), base));
      for (int m = 0; m < Rows; ++m) {
        IntegerSum sum(load_as<int32_t>(row[m] + offsetof(DraftBlock, correction)));
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
          sum.add(weights[i], _mm256_set1_epi32(load_as<int32_t>(row[m] + i * 4)));
        const __m256 x_scale = _mm256_set1_ps(load_as<float>(row[m] + offsetof(DraftBlock, scale)));
        total[m][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum.value()),
                                         _mm256_mul_ps(scale, x_scale), total[m][half]);
      }
    }
    for (int m = 0; m < Rows; ++m) row[m] += sizeof(DraftBlock);
    codes += kTileCodes;
    scales += kPanel;
  }
  for (int m = 0; m < Rows; ++m)
    for (int half = 0; half < Halves; ++half)
      _mm256_storeu_ps(out + m * out_stride + (first_half + half) * 8, total[m][half]);
}

void draft_product_avx2(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride) {
  for (int64_t p = first; p < last; ++p)
    for_row_groups<4>(x.count, [&]<int Rows>(int64_t m) {
      // Both halves at once read memory better, but many rows need more than sixteen registers.
      constexpr int kHalves = Rows == 1 || kHasByteProducts ? 2 : 1;
      for (int half = 0; half < 2; half += kHalves)
        draft_rows_avx2<Rows, kHalves>(w, p, half, rows_from(x, m, 0),
                                       out + m * out_stride + (p - first) * kPanel, out_stride);
    });
}

constexpr Kernels avx2_table(const char* name) {
  Kernels table = generic_table(name);
  table.prepare_exact = prepare_exact_avx2;
  table.prepare_draft = prepare_draft_avx2;
  table.decode_tile = decode_tile_avx2;
  table.exact_product = exact_product_in_rows<Avx2Exact>;
  table.accumulate_plain = accumulate_plain_by<InRowGroups<Avx2Exact>>;
  table.draft_product = draft_product_avx2;
  return table;
}

}  // namespace
}  // namespace specqd
