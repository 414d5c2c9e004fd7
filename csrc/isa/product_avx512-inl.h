// The products on 512-bit registers: one register holds the sixteen outputs of a panel.
#pragma once

// GCC 12 takes its own headers' undefined registers for ours (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "isa/product-inl.h"
#include "isa/table-inl.h"

namespace specqd {
namespace {

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

// How many tiles ahead the planes are fetched; measured, flat around these.
constexpr int kExactTilesAhead = 8;
constexpr int kDraftTilesAhead = 16;

inline void fetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

// One tile without its patches. The thirty-two weights of row r have their codes in nibble r % 4 of
// the words of 64 bytes.
inline void decode_nested(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  const uint8_t* codes = w.codes + tile * kTileCodes;
  const uint8_t* residuals = w.residuals + tile * kTileWeights;
  const __m512i words = _mm512_load_si512(kCodeWords.word);
  const __m128i scales =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.scales + tile * kPanel));
  __m512i exponents = _mm512_slli_epi32(_mm512_cvtepu8_epi32(scales), 7);
  exponents = _mm512_or_si512(exponents, _mm512_slli_epi32(exponents, 16));
  const auto decode_row = [&](int row, __m512i nibbles) {
    const __m512i residual = _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(residuals + row * 32)));
    const __m512i least = _mm512_permutexvar_epi16(nibbles, words);
    _mm512_storeu_si512(out + row * 32,
                        _mm512_add_epi16(least, _mm512_add_epi16(exponents, residual)));
  };
#pragma GCC unroll 4
  for (int group = 0; group < 4; ++group) {
    fetch(codes + group * 64 + kExactTilesAhead * kTileCodes);
    fetch(residuals + group * 128 + kExactTilesAhead * kTileWeights);
    fetch(residuals + group * 128 + 64 + kExactTilesAhead * kTileWeights);
    const __m512i four = _mm512_loadu_si512(codes + group * 64);
    decode_row(group * 4, four);
    decode_row(group * 4 + 1, _mm512_srli_epi16(four, 4));
    decode_row(group * 4 + 2, _mm512_srli_epi16(four, 8));
    decode_row(group * 4 + 3, _mm512_srli_epi16(four, 12));
  }
}

struct Avx512Exact {
  static constexpr int kRows = 8, kPanels = 1;

  static void decode(const PackedMatrix& w, int64_t tile, uint16_t* out) {
    decode_nested(w, tile, out);
    apply_patches(w, tile, out);
  }

  template <int Rows, int Panels>
  static void accumulate(const uint16_t* tile, int64_t step, int64_t tiles, const PreparedRows& x,
                         float* out, int64_t out_stride) {
    __m512 total[Panels][Rows];
    for (int i = 0; i < Panels; ++i)
      for (int m = 0; m < Rows; ++m)
        total[i][m] = _mm512_loadu_ps(out + m * out_stride + i * kPanel);
    for (int64_t t = 0; t < tiles; ++t) {
      __m512 even[Panels][Rows], odd[Panels][Rows];
      for (int i = 0; i < Panels; ++i)
        for (int m = 0; m < Rows; ++m) even[i][m] = odd[i][m] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int k = 0; k < kBlock; k += 2) {
        __m512 w_even[Panels], w_odd[Panels];
        for (int i = 0; i < Panels; ++i) {
          const __m512i pairs = _mm512_loadu_si512(tile + i * step + t * kTileWeights + k * kPanel);
          w_even[i] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
          w_odd[i] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
        }
        for (int m = 0; m < Rows; ++m) {
          const auto* inputs =
              reinterpret_cast<const float*>(x.data + m * x.stride) + t * kBlock + k;
          const __m512 x_even = _mm512_set1_ps(inputs[0]), x_odd = _mm512_set1_ps(inputs[1]);
          for (int i = 0; i < Panels; ++i) {
            even[i][m] = _mm512_fmadd_ps(w_even[i], x_even, even[i][m]);
            odd[i][m] = _mm512_fmadd_ps(w_odd[i], x_odd, odd[i][m]);
          }
        }
      }
      for (int i = 0; i < Panels; ++i)
        for (int m = 0; m < Rows; ++m)
          total[i][m] = _mm512_add_ps(total[i][m], _mm512_add_ps(even[i][m], odd[i][m]));
    }
    for (int i = 0; i < Panels; ++i)
      for (int m = 0; m < Rows; ++m)
        _mm512_storeu_ps(out + m * out_stride + i * kPanel, total[i][m]);
  }
};

void decode_tile_avx512(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  if (w.plain != nullptr) return decode_tile(w, tile, out);
  Avx512Exact::decode(w, tile, out);
}

// --- Draft reading ------------------------------------------------------------------------------

// Unsigned weights: doubled E2M1 plus 12.
struct UnsignedWeights {
  alignas(16) uint8_t of_code[16];
  constexpr UnsignedWeights() : of_code() {
    for (int i = 0; i < 16; ++i)
      of_code[i] = static_cast<uint8_t>(kDoubledE2m1[i] + kUnsignedOffset);
  }
};
constexpr UnsignedWeights kUnsignedWeights;

template <int Rows>
inline void draft_rows_avx512(const PackedMatrix& w, int64_t panel, const PreparedRows& x,
                              float* out, int64_t out_stride) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i weights_of = _mm512_broadcast_i32x4(
      _mm_load_si128(reinterpret_cast<const __m128i*>(kUnsignedWeights.of_code)));
  __m512 total[Rows];
  for (int m = 0; m < Rows; ++m) total[m] = _mm512_setzero_ps();
  const int64_t row_scales = w.tiles * kBlock, row_corrections = row_scales + w.tiles * 4;
  for (int64_t t = 0; t < w.tiles; ++t) {
    const int64_t tile = panel * w.tiles + t;
    const uint8_t* codes = w.codes + tile * kTileCodes;
    __m512i sum[Rows], sum2[Rows];
    for (int m = 0; m < Rows; ++m) {
      int32_t correction;
      std::memcpy(&correction, x.data + m * x.stride + row_corrections + t * 4, 4);
      sum[m] = _mm512_set1_epi32(correction);
      sum2[m] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int group = 0; group < 4; ++group) {
      fetch(codes + group * 64 + kDraftTilesAhead * kTileCodes);
      const __m512i both = _mm512_loadu_si512(codes + group * 64);
      const __m512i low = _mm512_shuffle_epi8(weights_of, _mm512_and_si512(both, nibble));
      const __m512i high =
          _mm512_shuffle_epi8(weights_of, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
      for (int m = 0; m < Rows; ++m) {
        int32_t inputs[2];
        std::memcpy(inputs, x.data + m * x.stride + t * kBlock + group * 8, 8);
        sum[m] = _mm512_dpbusd_epi32(sum[m], low, _mm512_set1_epi32(inputs[0]));
        sum2[m] = _mm512_dpbusd_epi32(sum2[m], high, _mm512_set1_epi32(inputs[1]));
      }
    }
    const __m512 scales = (__m512)scale_values(w.scales + tile * kPanel);
    for (int m = 0; m < Rows; ++m) {
      float input_scale;
      std::memcpy(&input_scale, x.data + m * x.stride + row_scales + t * 4, 4);
      total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sum[m], sum2[m])),
                                 _mm512_mul_ps(scales, _mm512_set1_ps(input_scale)), total[m]);
    }
  }
  for (int m = 0; m < Rows; ++m) _mm512_storeu_ps(out + m * out_stride, total[m]);
}

void draft_product_avx512(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                          float* out, int64_t out_stride) {
  for (int64_t p = first; p < last; ++p)
    for_row_groups<8>(x.count, [&]<int Rows>(int64_t m) {
      draft_rows_avx512<Rows>(w, p, rows_from(x, m, 0), out + m * out_stride + (p - first) * kPanel,
                              out_stride);
    });
}

constexpr Kernels avx512_table(const char* name) {
  Kernels table = generic_table(name);
  table.decode_tile = decode_tile_avx512;
  table.exact_product = exact_product_by<Avx512Exact>;
  table.accumulate_plain = accumulate_plain_by<Avx512Exact>;
  table.draft_product = draft_product_avx512;
  return table;
}

}  // namespace
}  // namespace specqd
