// The products on 512-bit registers: one register holds the sixteen outputs of a panel.
#pragma once

// GCC 12 warns about undefined registers in its own headers.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/isa/prepare_avx2-inl.h"
#include "kernels/isa/product-inl.h"
#include "kernels/isa/product_many-inl.h"
#include "kernels/isa/table-inl.h"

namespace specqd {
namespace {

// The BF16 bits of a tile's scales, in both halves of each output's lane. The constructor also
// prefetches the patches of a later tile.
template <class Fetch>
struct Avx512Scales {
  __m512i bits = _mm512_setzero_si512();
  Avx512Scales() = default;
  [[gnu::always_inline]] Avx512Scales(const PackedMatrix& w, int64_t tile) {
    const auto* const scales = reinterpret_cast<const __m128i*>(w.scales + tile * kPanel);
    const __m512i shift = _mm512_set1_epi32(static_cast<int>(w.scale.shift - 16));
    const __m512i lower = _mm512_sllv_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(scales)), shift);
    bits = _mm512_add_epi16(_mm512_or_si512(lower, _mm512_slli_epi32(lower, 16)),
                            _mm512_set1_epi16(static_cast<int16_t>(w.scale.base >> 16)));
    Fetch::from(w.patches + w.patch_starts[tile] + 16 * Fetch::kTilesAhead);
  }
};

// Decodes one row of 32 weights at a time. The codes of row r are the nibbles r % 4 of the 16-bit
// words in 64 bytes.
template <class Fetch, class Patches = PatchesBySixteen<InTileOrder>>
class Avx512DecoderBy
    : public NestedDecoder<Avx512DecoderBy<Fetch, Patches>, Avx512Scales<Fetch>, Patches> {
 public:
  static constexpr bool kIsWoven = false;

  using Avx512DecoderBy::NestedDecoder::NestedDecoder;

  [[gnu::always_inline]] void row(int r) {
    const uint8_t *const codes = this->codes_, *const residuals = this->residuals_;
    if (r < 4) Fetch::from(codes + r * 64 + Fetch::kTilesAhead * kTileCodes);
    if (r >= 4 && r < 12) Fetch::from(residuals + (r - 4) * 64 + Fetch::kTilesAhead * kTileWeights);
    const __m512i residual = _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(residuals + r * 32)));
    const __m512i nibbles =
        _mm512_srli_epi16(_mm512_loadu_si512(codes + r / 4 * 64), static_cast<unsigned>(r % 4 * 4));
    const __m512i least = _mm512_permutexvar_epi16(nibbles, _mm512_load_si512(kCodeWords.word));
    _mm512_store_si512(this->out_ + r * 32,
                       _mm512_add_epi16(least, _mm512_add_epi16(this->scales_.bits, residual)));
  }
};
using Avx512Decoder = Avx512DecoderBy<FetchNear>;

struct Avx512Exact {
  static constexpr int kRows = 12;
  static constexpr size_t kBlockBytes = kFloatBlockBytes;
  using Decoder = Avx512Decoder;

  // A register holds the even and the odd chains of eight outputs, so two multiply-adds share one
  // load of a pair of inputs. Otherwise loads would be the bottleneck.
  template <int Rows, class Ahead>
  [[gnu::noinline]] static void accumulate(const uint16_t* tile, int64_t tiles,
                                           const PreparedRows& x, float* out, int64_t out_stride,
                                           const Ahead& given) {
    auto ahead = given.begin();
    const float* row[Rows];
    for (int m = 0; m < Rows; ++m) row[m] = reinterpret_cast<const float*>(x.data + m * x.stride);
    for (int64_t t = 0; t < tiles; ++t) {
      __m512 low[Rows], high[Rows];
      for (int m = 0; m < Rows; ++m) low[m] = high[m] = _mm512_setzero_ps();
#pragma GCC unroll 16
      for (int k = 0; k < kBlock; k += 2) {
        __m512i pairs = _mm512_loadu_si512(tile + k * kPanel);
        asm("" : "+v"(pairs));  // otherwise GCC loads it twice
        const __m512i zero = _mm512_setzero_si512();
        const __m512 w_low = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, pairs));
        const __m512 w_high = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, pairs));
        ahead.row(k / 2);
        for (int m = 0; m < Rows; ++m) {
          const __m512 inputs = _mm512_castpd_ps(_mm512_set1_pd(load_as<double>(row[m] + k)));
          low[m] = _mm512_fmadd_ps(w_low, inputs, low[m]);
          high[m] = _mm512_fmadd_ps(w_high, inputs, high[m]);
        }
      }
      for (int m = 0; m < Rows; ++m) {
        const __m512 even = _mm512_shuffle_ps(low[m], high[m], 0x88);
        const __m512 odd = _mm512_shuffle_ps(low[m], high[m], 0xdd);
        float* const total = out + m * out_stride;
        _mm512_storeu_ps(total, _mm512_add_ps(_mm512_loadu_ps(total), _mm512_add_ps(even, odd)));
        row[m] += kBlock;
      }
      tile += kTileWeights;
      ahead.end_tile();
    }
    while (!ahead.is_done()) ahead.whole_tile();
  }
};

void decode_tile_avx512(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  if (w.residuals == nullptr) return decode_tile(w, tile, out);
  alignas(64) uint16_t decoded[kTileWeights];
  Avx512Decoder(w, tile, 1, decoded).whole_tile();
  std::memcpy(out, decoded, sizeof(decoded));
}

// fp4 precision.

// With `Shuffles` and more than four rows, every second row uses one load and two shuffles instead
// of two loads. This is faster on CPUs that load no more vectors per cycle than they multiply.
template <int Rows, bool Shuffles>
[[gnu::noinline]] void draft_rows_avx512(const PackedMatrix& w, int64_t panel,
                                         const PreparedRows& x, float* out, int64_t out_stride) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i weights_of = _mm512_broadcast_i32x4(
      _mm_load_si128(reinterpret_cast<const __m128i*>(kUnsignedWeights.of_code)));
  const uint8_t* codes = w.codes + panel * w.tiles * kTileCodes;
  const uint8_t* scales = w.scales + panel * w.tiles * kPanel;
  const uint8_t* row[Rows];
  for (int m = 0; m < Rows; ++m) row[m] = x.data + m * x.stride;
  __m512 total[Rows];
  for (int m = 0; m < Rows; ++m) total[m] = _mm512_setzero_ps();
  // The shift count is in each lane, because a shift by one count for all lanes takes two
  // instructions.
  const __m512i shift = _mm512_set1_epi32(static_cast<int>(w.scale.shift));
  const __m512i base = _mm512_set1_epi32(static_cast<int32_t>(w.scale.base));
  for (int64_t t = 0; t < w.tiles; ++t) {
    __m512i sum[Rows];
    for (int m = 0; m < Rows; ++m)
      sum[m] = _mm512_set1_epi32(load_as<int32_t>(row[m] + offsetof(DraftBlock, correction)));
#pragma GCC unroll 4
    for (int group = 0; group < 4; ++group) {
      fetch_codes(codes + group * 64);
      const __m512i both = _mm512_loadu_si512(codes + group * 64);
      const __m512i low = _mm512_shuffle_epi8(weights_of, _mm512_and_si512(both, nibble));
      const __m512i high =
          _mm512_shuffle_epi8(weights_of, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
      for (int m = 0; m < Rows; ++m) {
        const uint8_t* inputs = row[m] + group * 8;
        if (!Shuffles || Rows <= 4 || m % 2 == 0) {
          sum[m] = _mm512_dpbusd_epi32(sum[m], low, _mm512_set1_epi32(load_as<int32_t>(inputs)));
          sum[m] =
              _mm512_dpbusd_epi32(sum[m], high, _mm512_set1_epi32(load_as<int32_t>(inputs + 4)));
        } else {
          const __m512 both_inputs = _mm512_castpd_ps(_mm512_set1_pd(load_as<double>(inputs)));
          sum[m] = _mm512_dpbusd_epi32(sum[m], low,
                                       _mm512_castps_si512(_mm512_moveldup_ps(both_inputs)));
          sum[m] = _mm512_dpbusd_epi32(sum[m], high,
                                       _mm512_castps_si512(_mm512_movehdup_ps(both_inputs)));
        }
      }
    }
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    const __m512 scale = _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_sllv_epi32(_mm512_cvtepu8_epi32(bytes), shift), base));
    for (int m = 0; m < Rows; ++m) {
      const __m512 x_scale = _mm512_set1_ps(load_as<float>(row[m] + offsetof(DraftBlock, scale)));
      total[m] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m]), _mm512_mul_ps(scale, x_scale), total[m]);
      row[m] += sizeof(DraftBlock);
    }
    codes += kTileCodes;
    scales += kPanel;
  }
  for (int m = 0; m < Rows; ++m) _mm512_storeu_ps(out + m * out_stride, total[m]);
}

template <bool Shuffles>
void draft_product_avx512(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                          float* out, int64_t out_stride) {
  for (int64_t p = first; p < last; ++p)
    for_row_groups<8>(x.count, [&]<int Rows>(int64_t m) {
      draft_rows_avx512<Rows, Shuffles>(w, p, rows_from(x, m, 0),
                                        out + m * out_stride + (p - first) * kPanel, out_stride);
    });
}

constexpr Kernels avx512_table(const char* name) {
  Kernels table = generic_table(name);
  table.prepare_draft = prepare_draft_avx2<>;
  table.decode_tile = decode_tile_avx512;
  table.exact_product = exact_product_in_rows<Avx512Exact>;
  attend_by<accumulate_plain_by<InRowGroups<Avx512Exact>>, Avx512Exact::kBlockBytes>(table);
  table.draft_product = draft_product_avx512<false>;
  return table;
}

}  // namespace
}  // namespace specqd
