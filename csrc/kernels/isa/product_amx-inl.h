// The products on tile registers. T is the hardware (amx_tiles-inl.h) or its emulation. Decoding
// and elementwise operations use AVX-512. Every product configures the tiles when it starts and
// releases them when it ends, so that no other code of the thread sees them configured.
#pragma once

#include "kernels/isa/amx_tiles-inl.h"
#include "kernels/isa/paged_amx-inl.h"
#include "kernels/isa/product_avx512-inl.h"
#include "kernels/isa/product_many_amx-inl.h"

namespace specqd {
namespace {

// Exact precision.

void prepare_exact_amx(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  for_rounded_inputs(x, inputs, tiles,
                     [&](int64_t k, H16 sixteen) { store_as(row + k * 2, sixteen); });
}

// Multiplies up to 48 rows at once: their sums are in tiles 0 1 2, their inputs in tiles 3 4 5, and
// weights in tile 6.
template <class T>
struct AmxExact {
  static constexpr int kDecodedAhead = 8;
  static constexpr size_t kBlockBytes = kBf16BlockBytes;
  static constexpr int64_t kRows = 3 * kTileRows;
  using Decoder = Avx512DecoderBy<FetchInTwoSteps>;

  class Scope {
   public:
    explicit Scope(int64_t rows) { configure(rows < kRows ? rows : kRows); }
    ~Scope() { T::release(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  static void configure(int64_t rows) {
    TileShapes shapes;
    for (int i = 0; i < 3; ++i) {
      const int64_t rest = rows - i * kTileRows;
      if (rest <= 0) break;
      shapes.rows[i] = shapes.rows[3 + i] =
          static_cast<uint8_t>(rest < kTileRows ? rest : kTileRows);
      shapes.row_bytes[i] = shapes.row_bytes[3 + i] = 64;
    }
    shapes.rows[6] = kTileRows;
    shapes.row_bytes[6] = 64;
    T::configure(shapes);
  }

  // The tiles are configured for the first group of rows on entry and on return.
  template <class Ahead>
  static void multiply(const uint16_t* tiles, int64_t count, const PreparedRows& x, float* out,
                       int64_t out_stride, const Ahead& ahead) {
    int64_t m = 0;
    for (; m + kRows <= x.count; m += kRows) {
      const auto rows = rows_from(x, m, 0);
      if (m == 0)
        accumulate<3>(tiles, count, rows, out, out_stride, ahead);
      else
        accumulate<3>(tiles, count, rows, out + m * out_stride, out_stride, Nothing{});
    }
    if (m == x.count) return;
    if (m == 0) return accumulate_rest(tiles, count, x, out, out_stride, ahead);
    configure(x.count - m);
    accumulate_rest(tiles, count, rows_from(x, m, 0), out + m * out_stride, out_stride, Nothing{});
    configure(kRows);
  }

 private:
  template <class Ahead>
  static void accumulate_rest(const uint16_t* tiles, int64_t count, const PreparedRows& x,
                              float* out, int64_t out_stride, const Ahead& ahead) {
    if (x.count <= kTileRows)
      accumulate<1>(tiles, count, x, out, out_stride, ahead);
    else if (x.count <= 2 * kTileRows)
      accumulate<2>(tiles, count, x, out, out_stride, ahead);
    else
      accumulate<3>(tiles, count, x, out, out_stride, ahead);
  }

  template <int Groups, class Ahead>
  static void accumulate(const uint16_t* tiles, int64_t count, const PreparedRows& x, float* out,
                         int64_t out_stride, const Ahead& given) {
    auto ahead = given.begin();
    const auto sums = [&](int i) { return out + i * kTileRows * out_stride; };
    const auto inputs = [&](int i, int64_t t) {
      return x.data + static_cast<size_t>(i * kTileRows) * x.stride +
             static_cast<size_t>(t) * kBlockBytes;
    };
    const size_t sum_stride = static_cast<size_t>(out_stride) * sizeof(float);
    T::template load<0>(sums(0), sum_stride);
    if constexpr (Groups > 1) T::template load<1>(sums(1), sum_stride);
    if constexpr (Groups > 2) T::template load<2>(sums(2), sum_stride);
    for (int64_t t = 0; t < count; ++t) {
      T::template load<6>(tiles + t * kTileWeights, 64);
      T::template load<3>(inputs(0, t), x.stride);
      T::template dot_bf16<0, 3, 6>();
      if constexpr (Groups > 1) {
        T::template load<4>(inputs(1, t), x.stride);
        T::template dot_bf16<1, 4, 6>();
      }
      if constexpr (Groups > 2) {
        T::template load<5>(inputs(2, t), x.stride);
        T::template dot_bf16<2, 5, 6>();
      }
      if (!ahead.is_done()) ahead.whole_tile();
    }
    T::template store<0>(sums(0), sum_stride);
    if constexpr (Groups > 1) T::template store<1>(sums(1), sum_stride);
    if constexpr (Groups > 2) T::template store<2>(sums(2), sum_stride);
    while (!ahead.is_done()) ahead.whole_tile();
  }
};

// fp4 precision.

constexpr int64_t kVnniRows = 8;      // up to this many rows, VNNI is faster
constexpr int kDraftTilesAtOnce = 4;  // their integer sums are in tiles 0 1 2 3
constexpr int kDraftTileBytes = kTileWeights;

// Decodes the signed, doubled weights of one tile: rows of groups of four inputs, in the order of
// prepared rows.
inline void decode_draft_tile(const uint8_t* codes, uint8_t* out) {
  alignas(16) static constexpr int8_t kWeights[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i weights_of =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kWeights)));
  for (int group = 0; group < 4; ++group) {
    fetch_codes(codes + group * 64);
    const __m512i both = _mm512_loadu_si512(codes + group * 64);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    _mm512_store_si512(out + group * 128,
                       _mm512_shuffle_epi8(weights_of, _mm512_and_si512(both, nibble)));
    _mm512_store_si512(out + group * 128 + 64, _mm512_shuffle_epi8(weights_of, high));
  }
}

// Multiplies up to 16 rows. The integer sums of a block are scaled and added outside the tile
// registers.
template <class T>
class AmxDraft {
 public:
  AmxDraft(const PackedMatrix& w, const PreparedRows& x, int64_t rows) : w_(w), x_(x), rows_(rows) {
    TileShapes shapes;
    for (int i = 0; i < kDraftTilesAtOnce; ++i) shape(&shapes, i, rows, 64);
    shape(&shapes, 4, rows, kBlock);
    shape(&shapes, 5, rows, kBlock);
    shape(&shapes, 6, kBlock / 4, 64);
    shape(&shapes, 7, kBlock / 4, 64);
    T::configure(shapes);
  }
  ~AmxDraft() { T::release(); }
  AmxDraft(const AmxDraft&) = delete;
  AmxDraft& operator=(const AmxDraft&) = delete;

  void multiply(int64_t panel, float* out, int64_t out_stride) {
    for (int64_t m = 0; m < rows_; ++m) store(out + m * out_stride, F16{});
    for (int64_t t = 0; t < w_.tiles; t += kDraftTilesAtOnce) {
      const int64_t count =
          w_.tiles - t < kDraftTilesAtOnce ? w_.tiles - t : static_cast<int64_t>(kDraftTilesAtOnce);
      const int64_t tile = panel * w_.tiles + t;
      for (int64_t i = 0; i < count; ++i)
        decode_draft_tile(w_.codes + (tile + i) * kTileCodes, weights_[i]);
      sum_tile<0>(t, count);
      sum_tile<1>(t, count);
      sum_tile<2>(t, count);
      sum_tile<3>(t, count);
      add_scaled(tile, t, count, out, out_stride);
    }
  }

 private:
  static void shape(TileShapes* shapes, int tile, int64_t rows, int64_t row_bytes) {
    shapes->rows[tile] = static_cast<uint8_t>(rows);
    shapes->row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  }

  template <int I>
  void sum_tile(int64_t t, int64_t count) {
    constexpr int kInputs = 4 + I % 2, kWeights = 6 + I % 2;
    if (I >= count) return;
    T::template zero<I>();
    T::template load<kInputs>(x_.data + (t + I) * static_cast<int64_t>(sizeof(DraftBlock)),
                              x_.stride);
    T::template load<kWeights>(weights_[I], 64);
    T::template dot_int8<I, kInputs, kWeights>();
    T::template store<I>(sums_[I], 64);
  }

  void add_scaled(int64_t tile, int64_t t, int64_t count, float* out, int64_t out_stride) const {
    F16 scale[kDraftTilesAtOnce];
    for (int64_t i = 0; i < count; ++i) scale[i] = scale_values(w_, tile + i);
    for (int64_t m = 0; m < rows_; ++m) {
      F16 total = load(out + m * out_stride);
      for (int64_t i = 0; i < count; ++i) {
        const auto x_scale = load_as<float>(x_.data + m * x_.stride +
                                            (t + i) * static_cast<int64_t>(sizeof(DraftBlock)) +
                                            offsetof(DraftBlock, scale));
        total = fma(to_float(load_as<I16>(sums_[i][m])), scale[i] * splat(x_scale), total);
      }
      store(out + m * out_stride, total);
    }
  }

  const PackedMatrix& w_;
  const PreparedRows& x_;
  int64_t rows_;
  alignas(64) uint8_t weights_[kDraftTilesAtOnce][kDraftTileBytes];
  alignas(64) int32_t sums_[kDraftTilesAtOnce][kTileRows][kPanel];
};

template <class T>
void draft_product_amx(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                       float* out, int64_t out_stride) {
  for (int64_t m = 0; m < x.count; m += kTileRows) {
    const PreparedRows rest = rows_from(x, m, 0);
    float* const at = out + m * out_stride;
    if (rest.count <= kVnniRows)
      return draft_product_avx512<false>(w, first, last, rest, at, out_stride);
    AmxDraft<T> product(w, rest, rest.count < kTileRows ? rest.count : kTileRows);
    for (int64_t p = first; p < last; ++p)
      product.multiply(p, at + (p - first) * kPanel, out_stride);
  }
}

template <class T>
constexpr Kernels amx_table(const char* name) {
  Kernels table = avx512_table(name);
  table.exact_row_bytes = exact_row_bytes_bf16;
  table.prepare_exact = prepare_exact_amx;
  table.exact_product = exact_product_amx<AmxExact<T>, T>;
  table.score_keys = score_keys_amx<T>;
  table.sum_values = sum_values_amx<T>;
  table.softmax_part = softmax_part_by<LinesAhead>;
  table.draft_product = draft_product_amx<T>;
  return table;
}

}  // namespace
}  // namespace specqd
