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

// Loads sixteen bytes into both halves of a register.
inline __m256i table_of(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

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

// Exact precision.

// The BF16 bits of a tile's scales: half[0] of the first eight outputs, half[1] of the others.
struct Avx2Scales {
  __m256i half[2];
  Avx2Scales() = default;
  [[gnu::always_inline]] Avx2Scales(const PackedMatrix& w, int64_t tile) {
    const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(w.scale.shift - 16));
    const __m256i base = _mm256_set1_epi16(static_cast<int16_t>(w.scale.base >> 16));
    const __m128i scales =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.scales + tile * kPanel));
    const __m256i words =
        _mm256_add_epi16(_mm256_sll_epi16(_mm256_cvtepu8_epi16(scales), shift), base);
    const __m256i low = _mm256_unpacklo_epi16(words, words);
    const __m256i high = _mm256_unpackhi_epi16(words, words);
    half[0] = _mm256_permute2x128_si256(low, high, 0x20);
    half[1] = _mm256_permute2x128_si256(low, high, 0x31);
  }
};

// Decodes eight outputs of four rows at a time.
class Avx2Decoder : public NestedDecoder<Avx2Decoder, Avx2Scales, PatchesInTurn> {
 public:
  static constexpr bool kNeedsRegisters = true;

  using NestedDecoder::NestedDecoder;

  [[gnu::always_inline]] void row(int r) {
    const auto at = static_cast<unsigned>(r);
    if (at % 2 == 0) decode_part(at / 2 % 2, at / 4);
  }

  void whole_tile() {  // GCC would inline the base's whole_tile(), which is too long
#pragma GCC unroll 4
    for (size_t group = 0; group < 4; ++group) {
      decode_part(0, group);
      decode_part(1, group);
    }
    end_tile();
  }

 private:
  // Decodes eight outputs of four rows, looking up two of a word's four nibbles at once. The low
  // nibbles of the word's two bytes belong to rows 0 and 2, the high ones to rows 1 and 3. A
  // shuffle first puts the bytes of rows 0 and 1 before those of rows 2 and 3.
  [[gnu::always_inline]] void decode_part(size_t half, size_t group) {
    const uint8_t* const codes = codes_ + group * 64 + half * 32;
    const uint8_t* const residuals = residuals_ + group * 128 + half * 16;
    uint16_t* const out = out_ + group * 128 + half * 16;
    const __m256i low_bytes = table_of(kCodeBytes.low), high_bytes = table_of(kCodeBytes.high);
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i evens_first =
        _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10,
                         12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m256i scale_bits = scales_.half[half];
    asm("" : "+x"(scale_bits));  // otherwise GCC keeps it for the next part and spills others
    const auto store_row = [&](int row, __m256i least) {
      const __m256i residual = _mm256_cvtepu8_epi16(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(residuals + row * 32)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + row * 32),
                          _mm256_add_epi16(least, _mm256_add_epi16(scale_bits, residual)));
    };
    if (half == 0) fetch(codes + kExactTilesAhead * kTileCodes);
    fetch(residuals + half * 48 + kExactTilesAhead * kTileWeights);
    const __m256i words = load_32(codes);
    const __m256i bytes = _mm256_shuffle_epi8(words, evens_first);
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i two = _mm256_and_si256(odd ? _mm256_srli_epi16(bytes, 4) : bytes, nibble);
      const __m256i low = _mm256_shuffle_epi8(low_bytes, two);
      const __m256i high = _mm256_shuffle_epi8(high_bytes, two);
      store_row(odd, _mm256_unpacklo_epi8(low, high));
      store_row(odd + 2, _mm256_unpackhi_epi8(low, high));
    }
  }
};

struct Avx2Exact {
  static constexpr int kRows = 6;
  static constexpr size_t kBlockBytes = kFloatBlockBytes;
  using Decoder = Avx2Decoder;

  // A register holds the even and the odd chains of four outputs, so two or four multiply-adds
  // share one load of a pair of inputs. Eight such registers just hide the latency of
  // multiply-adds; twelve leave some slack, but no registers for decoding. One or two rows are
  // multiplied for all outputs, more rows for half of the outputs at a time.
  template <int Rows, class Ahead>
  [[gnu::noinline]] static void accumulate(const uint16_t* tile, int64_t tiles,
                                           const PreparedRows& x, float* out, int64_t out_stride,
                                           const Ahead& given) {
    auto ahead = given.begin();
    const uint8_t* inputs = x.data;
    for (int64_t t = 0; t < tiles; ++t) {
      if constexpr (kIsMixed<Rows, decltype(ahead)>) {
        multiply_tile<Rows>(tile, inputs, x.stride, out, out_stride, ahead);
        ahead.end_tile();
      } else {
        multiply_alone<Rows>(tile, inputs, x.stride, out, out_stride);
        if (!ahead.is_done()) ahead.whole_tile();
      }
      inputs += kBlockBytes;
      tile += kTileWeights;
    }
    while (!ahead.is_done()) ahead.whole_tile();
  }

 private:
  // Whether `ahead` is interleaved with multiplications. More than four rows leave no registers for
  // decoding, so it follows each tile.
  template <int Rows, class Ahead>
  static constexpr bool kIsMixed = Rows <= 4 || !requires { Ahead::kNeedsRegisters; };

  // No other work, and loops are unrolled.
  struct Alone : Nothing {
    static constexpr bool kUnrolls = true;
  };

  // Multiplies one tile without a branch. Between tiles of decoding, the ends of loops were often
  // predicted wrongly.
  template <int Rows>
  [[gnu::noinline]] static void multiply_alone(const uint16_t* tile, const uint8_t* x,
                                               size_t stride, float* out, int64_t out_stride) {
    Alone alone;
    multiply_tile<Rows>(tile, x, stride, out, out_stride, alone);
  }

  template <int Rows, class Ahead>
  [[gnu::always_inline]] static void multiply_tile(const uint16_t* tile, const uint8_t* x,
                                                   size_t stride, float* out, int64_t out_stride,
                                                   Ahead& ahead) {
    if constexpr (Rows <= 2) {
      multiply_outputs<Rows, 0, 2>(tile, x, stride, out, out_stride, ahead);
    } else {
      multiply_outputs<Rows, 0, 1>(tile, x, stride, out, out_stride, ahead);
      multiply_outputs<Rows, 1, 1>(tile, x, stride, out, out_stride, ahead);
    }
  }

  // Multiplies `Halves` halves of the outputs, from half `First` on.
  template <int Rows, int First, int Halves, class Ahead>
  [[gnu::always_inline]] static void multiply_outputs(const uint16_t* tile, const uint8_t* x,
                                                      size_t stride, float* out, int64_t out_stride,
                                                      Ahead& ahead) {
    __m256 chains[Rows][2 * Halves];
    for (int m = 0; m < Rows; ++m)
      for (__m256& chain : chains[m]) chain = _mm256_setzero_ps();
    tile += First * 16;
    out += First * 8;
    const auto multiply_group = [&](int group) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int step = 0; step < 4; ++step) {
        if (Halves == 2 || step % 2 == 0) ahead.row(group * 4 + First * 2 + step * Halves / 2);
        const __m256i zero = _mm256_setzero_si256();
        for (int half = 0; half < Halves; ++half) {
          const __m256i pairs = load_32(tile + step * 2 * kPanel + half * 16);
          const __m256 low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, pairs));
          const __m256 high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, pairs));
          for (int m = 0; m < Rows; ++m) {
            const auto pair = load_as<double>(x + static_cast<size_t>(m) * stride + step * 8);
            const __m256 inputs = _mm256_castpd_ps(_mm256_set1_pd(pair));
            add_product(low, inputs, chains[m][half * 2]);
            add_product(high, inputs, chains[m][half * 2 + 1]);
          }
        }
      }
      tile += 8 * kPanel;
      x += 8 * sizeof(float);
    };
    if constexpr (requires { Ahead::kUnrolls; }) {
#pragma GCC unroll 4
      for (int group = 0; group < 4; ++group) multiply_group(group);
    } else {
#pragma GCC unroll 1
      for (int group = 0; group < 4; ++group) multiply_group(group);
    }
    add_chains<Rows, Halves>(chains, out, out_stride);
  }

  [[gnu::always_inline]] static void add_product(__m256 weights, __m256 inputs, __m256& chain) {
    chain = _mm256_fmadd_ps(weights, inputs, chain);
    asm("" : "+x"(chain));  // otherwise GCC reorders the products of a step and spills chains
  }

  // Adds the sums of the even and the odd chains to the totals.
  template <int Rows, int Halves>
  [[gnu::always_inline]] static void add_chains(const __m256 (&chains)[Rows][2 * Halves],
                                                float* out, int64_t out_stride) {
    for (int m = 0; m < Rows; ++m) {
      for (int half = 0; half < Halves; ++half) {
        const __m256 low = chains[m][half * 2], high = chains[m][half * 2 + 1];
        const __m256 sum =
            _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd));
        float* const total = out + m * out_stride + half * 8;
        _mm256_storeu_ps(total, _mm256_add_ps(_mm256_loadu_ps(total), sum));
      }
    }
  }
};

void decode_tile_avx2(const PackedMatrix& w, int64_t tile, uint16_t* out) {
  if (w.residuals == nullptr) return decode_tile(w, tile, out);
  Avx2Decoder(w, tile, 1, out).whole_tile();
}

// fp4 precision.

// Integer sums of eight outputs. They start at the correction for the 12 that was added to each
// weight.
#if defined(__AVXVNNI__)
constexpr bool kHasByteProducts = true;
struct IntegerSum {
  __m256i sum;
  IntegerSum() = default;
  explicit IntegerSum(int32_t start) : sum(_mm256_set1_epi32(start)) {}
  void add(__m256i weights, __m256i inputs) { sum = _mm256_dpbusd_avx_epi32(sum, weights, inputs); }
  __m256i value() const { return sum; }
};
#else
constexpr bool kHasByteProducts = false;
// Without byte products into 32 bits, each output has two sums of sixteen bits, modulo 2^16. A sum
// is of 16 products of at most 12 * 127 once the 12 is subtracted, so it fits. The start value
// holds both corrections.
struct IntegerSum {
  __m256i sum;
  IntegerSum() = default;
  explicit IntegerSum(int32_t start) : sum(_mm256_set1_epi32(start)) {}
  void add(__m256i weights, __m256i inputs) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, inputs));
    asm("" : "+x"(sum));  // otherwise GCC adds products first and runs out of registers
  }
  __m256i value() const { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};
#endif

// The scales of eight outputs.
inline __m256 scales_of(const uint8_t* scales, __m256i shift, __m256i base) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_sllv_epi32(_mm256_cvtepu8_epi32(bytes), shift), base));
}

// Adds the products of one block to the sums of sixteen outputs, for rows that are `stride` bytes
// apart. One load of four inputs serves all outputs. The sums of four rows and the weights fill the
// registers.
template <int Rows>
[[gnu::always_inline]] inline void add_block(const uint8_t* codes, const uint8_t* row,
                                             size_t stride, IntegerSum (&sums)[Rows][2]) {
  const __m256i nibble = _mm256_set1_epi8(15), weights_of = table_of(kUnsignedWeights.of_code);
#pragma GCC unroll 1
  for (int group = 0; group < 4; ++group) {
    fetch_codes(codes);
    const __m256i left = load_32(codes), right = load_32(codes + 32);
#pragma GCC unroll 2
    for (int high = 0; high < 2; ++high) {
      const auto weights = [&](__m256i both) {
        const __m256i code = high ? _mm256_srli_epi16(both, 4) : both;
        return _mm256_shuffle_epi8(weights_of, _mm256_and_si256(code, nibble));
      };
      const __m256i left_weights = weights(left), right_weights = weights(right);
      for (int m = 0; m < Rows; ++m) {
        const auto* const four = row + static_cast<size_t>(m) * stride + high * 4;
        const __m256i inputs = _mm256_set1_epi32(load_as<int32_t>(four));
        sums[m][0].add(left_weights, inputs);
        sums[m][1].add(right_weights, inputs);
      }
    }
    codes += 64;
    row += 8;
  }
}

// The totals stay in `out`, because the integer sums need the registers.
template <int Rows>
[[gnu::noinline]] void draft_rows_avx2(const PackedMatrix& w, int64_t panel, const PreparedRows& x,
                                       float* out, int64_t out_stride) {
  const __m256i shift = _mm256_set1_epi32(static_cast<int>(w.scale.shift));
  const __m256i base = _mm256_set1_epi32(static_cast<int32_t>(w.scale.base));
  const uint8_t* codes = w.codes + panel * w.tiles * kTileCodes;
  const uint8_t* scales = w.scales + panel * w.tiles * kPanel;
  const uint8_t* row = x.data;
  const size_t stride = x.stride;
  for (int m = 0; m < Rows; ++m) store(out + m * out_stride, F16{});
  for (int64_t t = 0; t < w.tiles; ++t) {
    IntegerSum sums[Rows][2];
    for (int m = 0; m < Rows; ++m) {
      const uint8_t* const at = row + static_cast<size_t>(m) * stride;
      sums[m][0] = sums[m][1] = IntegerSum(load_as<int32_t>(at + offsetof(DraftBlock, correction)));
    }
    add_block<Rows>(codes, row, stride, sums);
    const __m256 scale[2] = {scales_of(scales, shift, base), scales_of(scales + 8, shift, base)};
    for (int m = 0; m < Rows; ++m) {
      const uint8_t* const at = row + static_cast<size_t>(m) * stride;
      const __m256 x_scale = _mm256_set1_ps(load_as<float>(at + offsetof(DraftBlock, scale)));
      for (int half = 0; half < 2; ++half) {
        float* const total = out + m * out_stride + half * 8;
        _mm256_storeu_ps(
            total, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[m][half].value()),
                                   _mm256_mul_ps(scale[half], x_scale), _mm256_loadu_ps(total)));
      }
    }
    row += sizeof(DraftBlock);
    codes += kTileCodes;
    scales += kPanel;
  }
}

void draft_product_avx2(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride) {
  for (int64_t p = first; p < last; ++p)
    for_row_groups<4>(x.count, [&]<int Rows>(int64_t m) {
      draft_rows_avx2<Rows>(w, p, rows_from(x, m, 0), out + m * out_stride + (p - first) * kPanel,
                            out_stride);
    });
}

constexpr Kernels avx2_table(const char* name) {
  Kernels table = generic_table(name);
  table.prepare_exact = prepare_exact_avx2;
  table.prepare_draft = prepare_draft_avx2<kHasByteProducts>;
  table.decode_tile = decode_tile_avx2;
  table.exact_product = exact_product_in_rows<Avx2Exact>;
  attend_by<accumulate_plain_by<InRowGroups<Avx2Exact>>, Avx2Exact::kBlockBytes>(table);
  table.draft_product = draft_product_avx2;
  return table;
}

}  // namespace
}  // namespace specqd
