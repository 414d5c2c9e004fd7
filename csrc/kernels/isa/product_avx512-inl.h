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

// A tile's scales as BF16 exponents, repeated in both halves of each output's lane.
inline __m512i exponents_of(const PackedMatrix& w, int64_t tile) {
  const auto* const scales = reinterpret_cast<const __m128i*>(w.scales + tile * kPanel);
  const __m512i exponents = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(scales)), 7);
  return _mm512_or_si512(exponents, _mm512_slli_epi32(exponents, 16));
}

// The patches of a tile. `Place` converts their positions to those in the decoded tile.
template <class Place, class Fetch>
class TilePatches {
 public:
  // Keeps the first sixteen patches, and repeats one if there are fewer: a loop with one step per
  // patch would mispredict its end at every tile. They are stored when the tile begins, because a
  // narrow load right after a wide store waits long.
  [[gnu::always_inline]] void begin_tile(const PackedMatrix& w, int64_t tile) {
    patches_ = w.patches + w.patch_starts[tile];
    Fetch::from(patches_ + 20 * Fetch::kTilesAhead);
    count_ = w.patch_starts[tile + 1] - w.patch_starts[tile];
    const auto mask = static_cast<__mmask16>(_bzhi_u32(0xffff, static_cast<uint32_t>(count_)));
    const __m512i some = _mm512_maskz_loadu_epi32(mask, patches_);
    const __m512i one = _mm512_broadcastd_epi32(_mm512_castsi512_si128(some));
    _mm512_store_si512(first_, Place::place(_mm512_mask_mov_epi32(one, mask, some)));
    asm("" : "+m"(first_));  // otherwise GCC extracts them from the register one by one
  }

  [[gnu::always_inline]] void apply(uint16_t* tile) const {
    if (count_ == 0) return;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) put(first_[i], tile);
    for (int64_t i = 16; i < count_; i += 16) [[unlikely]] {
      alignas(64) uint32_t more[16];
      const int64_t rest = count_ - i < 16 ? count_ - i : 16;
      const auto mask = static_cast<__mmask16>(_bzhi_u32(0xffff, static_cast<uint32_t>(rest)));
      _mm512_store_si512(more, Place::place(_mm512_maskz_loadu_epi32(mask, patches_ + i)));
      for (int64_t j = 0; j < rest; ++j) put(more[j], tile);
    }
  }

 private:
  [[gnu::always_inline]] static void put(uint32_t patch, uint16_t* tile) {
    tile[patch >> 16] = static_cast<uint16_t>(patch);
  }

  const uint32_t* patches_ = nullptr;
  int64_t count_ = 0;
  alignas(64) uint32_t first_[16];
};

struct InTileOrder {
  static __m512i place(__m512i patches) { return patches; }
};

// Decodes nested tiles, one row of 32 weights at a time; past the last tile it repeats that tile.
// The codes of row r are nibble r % 4 of the words in 64 bytes.
template <class Fetch>
class Avx512DecoderBy {
 public:
  static constexpr bool kIsWoven = false;

  Avx512DecoderBy(const PackedMatrix& w, int64_t tile, int64_t count, uint16_t* out)
      : w_(w), tile_(tile), left_(count), out_(out) {
    begin_tile();
  }

  bool is_done() const { return left_ <= 0; }

  [[gnu::always_inline]] void row(int r) {
    if (r < 4) Fetch::from(codes_ + r * 64 + Fetch::kTilesAhead * kTileCodes);
    if (r >= 4 && r < 12)
      Fetch::from(residuals_ + (r - 4) * 64 + Fetch::kTilesAhead * kTileWeights);
    const __m512i residual = _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(residuals_ + r * 32)));
    const __m512i nibbles = _mm512_srli_epi16(_mm512_loadu_si512(codes_ + r / 4 * 64),
                                              static_cast<unsigned>(r % 4 * 4));
    const __m512i least = _mm512_permutexvar_epi16(nibbles, _mm512_load_si512(kCodeWords.word));
    _mm512_store_si512(out_ + r * 32,
                       _mm512_add_epi16(least, _mm512_add_epi16(exponents_, residual)));
  }

  void whole_tile() {
    for (int r = 0; r < kBlock / 2; ++r) row(r);
    end_tile();
  }

  [[gnu::always_inline]] void end_tile() {
    patches_.apply(out_);
    if (--left_ <= 0) return;
    ++tile_;
    out_ += kTileWeights;
    begin_tile();
  }

 private:
  [[gnu::always_inline]] void begin_tile() {
    codes_ = w_.codes + tile_ * kTileCodes;
    residuals_ = w_.residuals + tile_ * kTileWeights;
    exponents_ = exponents_of(w_, tile_);
    patches_.begin_tile(w_, tile_);
  }

  const PackedMatrix& w_;
  int64_t tile_, left_;
  uint16_t* out_;
  const uint8_t* codes_ = nullptr;
  const uint8_t* residuals_ = nullptr;
  __m512i exponents_ = _mm512_setzero_si512();
  TilePatches<InTileOrder, Fetch> patches_;
};
using Avx512Decoder = Avx512DecoderBy<FetchNear>;

struct Avx512Exact {
  static constexpr int kRows = 12;
  static constexpr size_t kBlockBytes = kFloatBlockBytes;
  using Decoder = Avx512Decoder;

  // A register holds the even and the odd chain of eight outputs side by side, so two multiply-adds
  // share one load of a pair of inputs: loads would be the bottleneck.
  template <int Rows, class Ahead>
  [[gnu::noinline]] static void accumulate(const uint16_t* tile, int64_t tiles,
                                           const PreparedRows& x, float* out, int64_t out_stride,
                                           Ahead ahead) {
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

// One of the two scales is a power of two, so their product is an addition of exponents while both
// stay from 2^-63 to 2^63. An addition can use any of the four pipes, a multiplication only the two
// that the dot products use.
constexpr int kLeastExponent = 64, kExponents = 127;

bool have_usual_scales(const PreparedRows& x, int64_t tiles) {
  uint32_t most = 0;
  for (int64_t m = 0; m < x.count; ++m) {
    const uint8_t* scale = x.data + m * x.stride + offsetof(DraftBlock, scale);
    for (int64_t t = 0; t < tiles; ++t, scale += sizeof(DraftBlock)) {
      const uint32_t above = load_as<uint32_t>(scale) - (kLeastExponent << 23);
      most = above > most ? above : most;
    }
  }
  return most < kExponents << 23;
}

// With `AddsExponents`, returns whether the weights' scales allowed it. With `Shuffles`, every
// second row of many uses one load and two shuffles, for cores on which loads are as scarce as dot
// products.
template <int Rows, bool AddsExponents, bool Shuffles>
[[gnu::noinline]] bool draft_rows_avx512(const PackedMatrix& w, int64_t panel,
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
  __m128i most = _mm_setzero_si128();
  for (int64_t t = 0; t < w.tiles; ++t) {
    __m512i sum[Rows];
    for (int m = 0; m < Rows; ++m)
      sum[m] = _mm512_set1_epi32(load_as<int32_t>(row[m] + offsetof(DraftBlock, correction)));
#pragma GCC unroll 4
    for (int group = 0; group < 4; ++group) {
      fetch(codes + group * 64 + kDraftTilesAhead * kTileCodes);
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
    const __m512i scale = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    const __m512i exponents = _mm512_sub_epi32(scale, _mm512_set1_epi32(127 << 23));
    if constexpr (AddsExponents)
      most = _mm_max_epu8(most, _mm_sub_epi8(bytes, _mm_set1_epi8(kLeastExponent)));
    for (int m = 0; m < Rows; ++m) {
      const auto x_scale =
          _mm512_set1_epi32(load_as<int32_t>(row[m] + offsetof(DraftBlock, scale)));
      const __m512 both =
          AddsExponents ? _mm512_castsi512_ps(_mm512_add_epi32(exponents, x_scale))
                        : _mm512_mul_ps(_mm512_castsi512_ps(scale), _mm512_castsi512_ps(x_scale));
      total[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m]), both, total[m]);
      row[m] += sizeof(DraftBlock);
    }
    codes += kTileCodes;
    scales += kPanel;
  }
  for (int m = 0; m < Rows; ++m) _mm512_storeu_ps(out + m * out_stride, total[m]);
  return _mm_cmplt_epu8_mask(most, _mm_set1_epi8(kExponents)) == 0xffff;
}

template <bool Shuffles>
void draft_product_avx512(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                          float* out, int64_t out_stride) {
  const bool is_usual = have_usual_scales(x, w.tiles);
  for (int64_t p = first; p < last; ++p)
    for_row_groups<8>(x.count, [&]<int Rows>(int64_t m) {
      const auto rows = rows_from(x, m, 0);
      float* const at = out + m * out_stride + (p - first) * kPanel;
      if (!is_usual || !draft_rows_avx512<Rows, true, Shuffles>(w, p, rows, at, out_stride))
        draft_rows_avx512<Rows, false, Shuffles>(w, p, rows, at, out_stride);
    });
}

constexpr Kernels avx512_table(const char* name) {
  Kernels table = generic_table(name);
  table.prepare_draft = prepare_draft_avx2;
  table.decode_tile = decode_tile_avx512;
  table.exact_product = exact_product_in_rows<Avx512Exact>;
  table.accumulate_plain = accumulate_plain_by<InRowGroups<Avx512Exact>>;
  table.draft_product = draft_product_avx512<true>;
  return table;
}

}  // namespace
}  // namespace specqd
