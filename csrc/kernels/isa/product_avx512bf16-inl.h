// The exact product with vdpbf16ps, which performs two multiply-adds per lane, one after the other,
// each rounded like a fused one. It does twice the work of an FMA at the same rate (Zen 4 and 5).
// It gives the same bits if both inputs of a pair belong to the same chain.
#pragma once

#include "kernels/isa/woven_avx512-inl.h"

namespace specqd {
namespace {

// Prepares rows of BF16. Each four inputs have the order 2 0 3 1: the pair of the even chain comes
// first, and the later input of a pair comes first, because the instruction begins with the upper
// half.
void prepare_exact_pairs(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  for_rounded_inputs(x, inputs, tiles, [&](int64_t k, H16 v) {
    store_as(row + k * 2,
             __builtin_shufflevector(v, v, 2, 0, 3, 1, 6, 4, 7, 5, 10, 8, 11, 9, 14, 12, 15, 13));
  });
}

// Adds to each lane of `sum` one pair of inputs, the same for all lanes, times the lane's pair of
// weights. It is written in assembly because GCC 12 does not use the instruction's own broadcast.
[[gnu::always_inline]] inline void add_pairs(__m512& sum, __m512i weights, const uint8_t* inputs) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(inputs)));
}

// Decodes tiles in tile order, and puts the patches of a tile only in the middle of the next one.
// There they disturb less than at the end, where the sums of many rows are stored.
template <class Fetch>
class LatePatchDecoder : public Avx512DecoderBy<Fetch, PatchesInTurn> {
 public:
  using LatePatchDecoder::Avx512DecoderBy::Avx512DecoderBy;

  [[gnu::always_inline]] void row(int r) {
    if (r == kBlock / 4) put_late(this->out_ - kTileWeights);
    LatePatchDecoder::Avx512DecoderBy::row(r);
  }

  [[gnu::always_inline]] void end_tile() {
    late_ = this->patches_;
    this->next_tile();
    if (this->is_done()) put_late(this->out_);
  }

  void whole_tile() {
#pragma GCC unroll 16
    for (int r = 0; r < kBlock / 2; ++r) row(r);
    end_tile();
  }

 private:
  [[gnu::always_inline]] void put_late(uint16_t* tile) {
    late_.apply(tile);
    late_ = {};
  }

  PatchesInTurn late_;  // of the tile before
};

// For CPUs that multiply whole 512-bit vectors (Zen 5). They load no more vectors per cycle than
// they multiply, two, so every second row uses one load and two shuffles.
struct WholeVectors {
  using FewRowsDecoder = Avx512Decoder;
  using MoreRowsDecoder = WovenDecoder;
  using ManyRowsDecoder = WovenDecoder;
  using Plain = PlainAhead;
  using PlainInGroups = PlainAhead;
  static constexpr bool kShuffles = true;
};

// For CPUs that need two cycles per 512-bit vector (Zen 4). Their shuffles compete with
// multiplications, and putting patches one after the other is faster. Weaving while decoding pays
// only for many rows. One group of rows reads plain tiles faster without prefetching; for several,
// the tiles and sums fill the first-level cache, so that the next tiles wait in the second.
struct HalfVectors {
  using FewRowsDecoder = Avx512DecoderBy<FetchIntoSecondLevel, PatchesInTurn>;
  using MoreRowsDecoder = LatePatchDecoder<FetchIntoSecondLevel>;
  using ManyRowsDecoder = WovenDecoder;
  using Plain = PlainUnfetched;
  using PlainInGroups = PlainAheadBy<FetchIntoSecondLevel>;
  static constexpr bool kShuffles = false;
};

// Multiplies woven tiles (woven_avx512-inl.h), or tiles in tile order, which it weaves at each use.
template <class Core, class TileDecoder>
struct Avx512Bf16Exact {
  static constexpr int kRows = 8;
  static constexpr size_t kBlockBytes = kBf16BlockBytes;
  using Decoder = TileDecoder;

  template <int Rows, class Ahead>
  [[gnu::noinline]] static void accumulate(const uint16_t* tile, int64_t tiles,
                                           const PreparedRows& x, float* out, int64_t out_stride,
                                           const Ahead& given) {
    auto ahead = given.begin();
    constexpr __mmask64 kUpperHalves = 0xcccccccccccccccc, kLowerHalves = ~kUpperHalves;
    const uint8_t* row[Rows];
    for (int m = 0; m < Rows; ++m) row[m] = x.data + m * x.stride;
    __m512 total[Rows];
    repeat<Rows>([&](auto m) __attribute__((always_inline)) {
      total[m] = _mm512_loadu_ps(out + m * out_stride);
    });
    for (int64_t t = 0; t < tiles; ++t) {
      __m512 even[Rows], odd[Rows];
      for (int m = 0; m < Rows; ++m) even[m] = odd[m] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int k = 0; k < kBlock; k += 4) {
        // Two rows of the tile for sixteen outputs: k and k + 1, then k + 2 and k + 3.
        __m512i first = _mm512_loadu_si512(tile + k * kPanel);
        __m512i second = _mm512_loadu_si512(tile + (k + 2) * kPanel);
        asm("" : "+v"(first), "+v"(second));  // otherwise GCC loads them twice
        const __m512i evens = Decoder::kIsWoven
                                  ? first
                                  : _mm512_mask_alignr_epi8(second, kUpperHalves, first, first, 14);
        const __m512i odds = Decoder::kIsWoven
                                 ? second
                                 : _mm512_mask_alignr_epi8(first, kLowerHalves, second, second, 2);
        ahead.row(k / 2);
        for (int m = 0; m < Rows; ++m) {
          const uint8_t* inputs = row[m] + k * 2;
          if (!Core::kShuffles || m % 2 == 0) {
            add_pairs(even[m], evens, inputs);
            add_pairs(odd[m], odds, inputs + 4);
          } else {
            const __m512 both = _mm512_castpd_ps(_mm512_set1_pd(load_as<double>(inputs)));
            even[m] =
                _mm512_dpbf16_ps(even[m], (__m512bh)evens, (__m512bh)_mm512_moveldup_ps(both));
            odd[m] = _mm512_dpbf16_ps(odd[m], (__m512bh)odds, (__m512bh)_mm512_movehdup_ps(both));
          }
          if (m == (Rows - 1) / 2) ahead.row(k / 2 + 1);
        }
      }
      repeat<Rows>([&](auto m) __attribute__((always_inline)) {
        total[m] = _mm512_add_ps(total[m], _mm512_add_ps(even[m], odd[m]));
        row[m] += kBf16BlockBytes;
      });
      tile += kTileWeights;
      ahead.end_tile();
    }
    repeat<Rows>([&](auto m) __attribute__((always_inline)) {
      _mm512_storeu_ps(out + m * out_stride, total[m]);
    });
    while (!ahead.is_done()) ahead.whole_tile();
  }
};

// Up to this many rows, a product waits for memory.
constexpr int64_t kFewRows = 4;

// The exact product whose nested tiles are decoded by `Decoder`.
template <class Core, class Decoder>
constexpr auto* kProductBy =
    exact_product_in_rows<Avx512Bf16Exact<Core, Decoder>, typename Core::Plain>;

template <class Core>
void exact_product_bf16(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride) {
  const bool is_few = w.residuals == nullptr || x.count <= kFewRows;
  const auto product = is_few                ? kProductBy<Core, typename Core::FewRowsDecoder>
                       : x.count < kManyRows ? kProductBy<Core, typename Core::MoreRowsDecoder>
                                             : kProductBy<Core, typename Core::ManyRowsDecoder>;
  product(w, first, last, x, out, out_stride);
}

template <class Core>
void accumulate_plain_bf16(const PlainPanels& w, const PreparedRows& x, float* out,
                           int64_t out_stride) {
  using Exact = Avx512Bf16Exact<Core, typename Core::FewRowsDecoder>;
  using Rows = InRowGroups<Exact>;
  const bool is_one_group = x.count <= Exact::kRows;
  const auto product = is_one_group ? accumulate_plain_by<Rows, typename Core::Plain>
                                    : accumulate_plain_by<Rows, typename Core::PlainInGroups>;
  product(w, x, out, out_stride);
}

template <class Core>
constexpr Kernels avx512bf16_table(const char* name) {
  Kernels table = avx512_table(name);
  table.exact_row_bytes = exact_row_bytes_bf16;
  table.prepare_exact = prepare_exact_pairs;
  table.exact_product = exact_product_bf16<Core>;
  attend_by<accumulate_plain_bf16<Core>, kBf16BlockBytes>(table);
  table.draft_product = draft_product_avx512<Core::kShuffles>;
  return table;
}

// Tests whether this machine's vdpbf16ps rounds like two fused multiply-adds, with all kinds of
// values: normal, subnormal, infinite, and products and sums that leave the range.
bool rounds_as_fused() {
  uint64_t state = 1;
  const auto random = [&] {  // the upper half of Knuth's linear congruential generator
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<uint32_t>(state >> 32);
  };
  // The ranges of exponents of weights and inputs; those of sums are twice as far from the middle.
  constexpr int kLeast[] = {0, 117, 50, 64, 180, 0}, kSpan[] = {256, 20, 20, 6, 20, 2};
  for (int round = 0; round < 600; ++round) {
    alignas(64) uint32_t weights[kLanes], inputs[kLanes], sums[kLanes];
    const int kind = round % 6;
    const auto exponent = [&] { return kLeast[kind] + random() % kSpan[kind]; };
    for (int i = 0; i < kLanes; ++i) {
      weights[i] = (random() & 0x807f807fu) | exponent() << 23 | exponent() << 7;
      inputs[i] = (random() & 0x807f807fu) | exponent() << 23 | exponent() << 7;
      const auto sum = static_cast<int>(2 * exponent()) - 127 + static_cast<int>(random() % 8) - 4;
      const int bounded = sum < 0 ? 0 : sum > 255 ? 255 : sum;
      sums[i] = (random() & 0x807fffffu) | static_cast<uint32_t>(bounded) << 23;
    }
    const U16 w = load_as<U16>(weights), x = load_as<U16>(inputs);
    const auto upper = [](U16 v) { return bits_as<F16>(v & 0xffff0000u); };
    const auto lower = [](U16 v) { return bits_as<F16>(v << 16); };
    const F16 sum = load_as<F16>(sums);
    const F16 expected = fma(lower(w), lower(x), fma(upper(w), upper(x), sum));
    const F16 actual = (F16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
    const I16 is_nan = (expected != expected) & (actual != actual);
    if (any((bits_as<I16>(expected) != bits_as<I16>(actual)) & ~is_nan)) return false;
  }
  return true;
}

}  // namespace
}  // namespace specqd
