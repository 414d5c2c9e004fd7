// The exact product of many rows on tile registers, and the sums that it shares with attention.
#pragma once

#include "kernels/isa/amx_tiles-inl.h"
#include "kernels/isa/product_avx512-inl.h"

namespace specqd {
namespace {

// Sums of up to 32 rows by two panels: four tiles of sums share two tiles of inputs and two of
// weights, so each multiplication needs only one load of a tile. Or sums of up to 48 rows by one
// panel.
template <class T>
struct AmxSums {
  static constexpr int64_t kRows = 2 * kTileRows, kMostRows = 3 * kTileRows;
  template <int Groups>  // of 16 rows
  static constexpr int kPanelsOf = Groups > 2 ? 1 : 2;

  // Configures the tiles and calls f<number of groups of 16 rows>(first row) for all rows, at most
  // `Most` at once.
  template <int64_t Most, class F>
  [[gnu::always_inline]] static void for_rows(int64_t count, const F& f) {
    for (int64_t m = 0; m < count; m += Most) {
      const int64_t rows = count - m < Most ? count - m : Most;
      if (m == 0 || rows < Most) configure(rows);
      if constexpr (Most > kRows) {
        if (rows > kRows) {
          f.template operator()<3>(m);
          continue;
        }
      }
      if (rows > kTileRows)
        f.template operator()<2>(m);
      else
        f.template operator()<1>(m);
    }
  }

  // out += `count` tiles of each panel; if `begins`, out is taken as zero. weights(p, t) points to
  // tile t of panel p. Calls each(t) after each tile.
  template <int Groups, int Panels, class Weights, class Each>
  [[gnu::always_inline]] static void accumulate(const Weights& weights, int64_t count, bool begins,
                                                const PreparedRows& x, float* out,
                                                int64_t out_stride, const Each& each) {
    static_assert(Panels <= kPanelsOf<Groups>);
    for_sums<Groups, Panels>(out, out_stride, [&]<int Sum>(float* sums, size_t stride) {
      begins ? T::template zero<Sum>() : T::template load<Sum>(sums, stride);
    });
    for (int64_t t = 0; t < count; ++t) {
      const uint8_t* const inputs = x.data + static_cast<size_t>(t) * kBf16BlockBytes;
      T::template load<7>(weights(0, t), 64);
      if constexpr (Panels > 1) T::template load<6>(weights(1, t), 64);
      T::template load<4>(inputs, x.stride);
      T::template dot_bf16<0, 4, 7>();
      if constexpr (Panels > 1) T::template dot_bf16<1, 4, 6>();
      if constexpr (Groups > 1) {
        T::template load<5>(inputs + kTileRows * x.stride, x.stride);
        T::template dot_bf16<kSecond<Groups>, 5, 7>();
        if constexpr (Panels > 1) T::template dot_bf16<3, 5, 6>();
      }
      if constexpr (Groups > 2) {
        T::template load<6>(inputs + 2 * kTileRows * x.stride, x.stride);
        T::template dot_bf16<2, 6, 7>();
      }
      each(t);
    }
    for_sums<Groups, Panels>(out, out_stride, [&]<int Sum>(float* sums, size_t stride) {
      T::template store<Sum>(sums, stride);
    });
  }

 private:
  // Sums of the first 16 rows are in tile 0 and those of the second panel in tile 1, sums of the
  // next rows in tiles 2 and 3. Inputs are in tiles 4 and 5, and weights in tiles 7 and 6. Three
  // groups of rows have sums in tiles 0 1 2, inputs in tiles 4 5 6 and weights in tile 7.
  template <int Groups>
  static constexpr int kSecond = Groups > 2 ? 1 : 2;

  static void configure(int64_t rows) {
    TileShapes shapes;
    const auto shape = [&](int tile, int64_t count) {
      const int64_t most = count < kTileRows ? count : kTileRows;
      shapes.rows[tile] = static_cast<uint8_t>(most > 0 ? most : 0);
      shapes.row_bytes[tile] = count > 0 ? 64 : 0;
    };
    const bool is_wide = rows <= kRows;  // two panels
    shape(6, kTileRows);
    shape(7, kTileRows);
    for (int group = 0; group < 3; ++group) {
      const int64_t count = rows - group * kTileRows;
      if (count <= 0) break;
      shape(4 + group, count);
      shape(is_wide ? 2 * group : group, count);
      if (is_wide) shape(2 * group + 1, count);
    }
    T::configure(shapes);
  }

  template <int Groups, int Panels, class F>
  [[gnu::always_inline]] static void for_sums(float* out, int64_t out_stride, const F& f) {
    const size_t stride = static_cast<size_t>(out_stride) * sizeof(float);
    f.template operator()<0>(out, stride);
    if constexpr (Panels > 1) f.template operator()<1>(out + kPanel, stride);
    float* const second = out + kTileRows * out_stride;
    if constexpr (Groups > 1) f.template operator()<kSecond<Groups>>(second, stride);
    if constexpr (Groups > 1 && Panels > 1) f.template operator()<3>(second + kPanel, stride);
    if constexpr (Groups > 2) f.template operator()<2>(second + kTileRows * out_stride, stride);
  }
};

// Decodes blocks of tiles of a few panels. While all rows are multiplied by one block, the next one
// is decoded.
template <class T>
class AmxManyRows {
 public:
  AmxManyRows(const PackedMatrix& w, const PreparedRows& x, float* out, int64_t out_stride)
      : w_(w), x_(x), out_(out), out_stride_(out_stride) {}

  void multiply(int64_t first, int64_t last) {
    const int64_t parts = (w_.tiles + kTiles - 1) / kTiles;
    const int64_t blocks = (last - first + kPanels - 1) / kPanels * parts;
    const auto block = [&](int64_t i) {
      if (i >= blocks) return Block{};
      const int64_t panel = i / parts * kPanels, part = i % parts;
      const int64_t begin = part * w_.tiles / parts, end = (part + 1) * w_.tiles / parts;
      const int64_t panels = last - first - panel < kPanels ? last - first - panel : kPanels;
      return Block{first + panel, panels, begin, end - begin, i % 2, out_ + panel * kPanel};
    };
    Ahead(*this, block(0)).finish();
    for (int64_t i = 0; i < blocks; ++i) {
      Ahead ahead(*this, block(i + 1));
      multiply_block(block(i), ahead);
      ahead.finish();
    }
    T::release();
  }

 private:
  using Sums = AmxSums<T>;
  // The size of a block; its weights take 128 KB of the second-level cache.
  static constexpr int64_t kPanels = 8, kTiles = 16;

  struct Block {
    int64_t panel = 0, panels = 0;
    int64_t tile = 0, tiles = 0;  // of each panel
    int64_t buffer = 0;
    float* out = nullptr;
  };

  // Decodes a block, one tile at a time.
  class Ahead {
   public:
    Ahead(AmxManyRows& product, const Block& block)
        : product_(product), block_(block), left_(product.w_.plain ? 0 : block.panels) {}
    void next_tile() {
      if (left_ == 0) return;
      const PackedMatrix& w = product_.w_;
      const int64_t p = block_.panels - left_;
      const int64_t tile = (block_.panel + p) * w.tiles + block_.tile + at_;
      uint16_t* const out = product_.decoded_[block_.buffer][p] + at_ * kTileWeights;
      if (w.residuals == nullptr)
        decode_mxfp4_tile(w, tile, out);
      else
        Avx512Decoder(w, tile, 1, out).whole_tile();
      if (++at_ < block_.tiles) return;
      at_ = 0;
      --left_;
    }
    void finish() {
      while (left_ > 0) next_tile();
    }

   private:
    AmxManyRows& product_;
    const Block block_;
    int64_t left_;    // panels
    int64_t at_ = 0;  // tiles decoded of the first of them
  };

  const uint16_t* weights(const Block& block, int64_t p) const {
    if (w_.plain == nullptr) return decoded_[block.buffer][p];
    return w_.plain + ((block.panel + p) * w_.tiles + block.tile) * kTileWeights;
  }

  void multiply_block(const Block& block, Ahead& ahead) {
    const auto at = static_cast<size_t>(block.tile) * kBf16BlockBytes;
    Sums::template for_rows<Sums::kRows>(x_.count, [&]<int Groups>(int64_t m) {
      const PreparedRows rows = rows_from(x_, m, at);
      for (int64_t p = 0; p < block.panels; p += 2)
        if (p + 1 < block.panels)
          multiply_panels<Groups, 2>(block, p, rows, m, ahead);
        else
          multiply_panels<Groups, 1>(block, p, rows, m, ahead);
    });
  }

  template <int Groups, int Panels>
  void multiply_panels(const Block& block, int64_t p, const PreparedRows& rows, int64_t m,
                       Ahead& ahead) {
    // Meanwhile, each pair of panels prefetches a part of the next rows' inputs.
    constexpr int64_t kFetched = Sums::kRows * 2 / kPanels;
    const int64_t next = Sums::kRows + p / 2 * kFetched, left = rows.count - next;
    const int64_t fetched = left < kFetched ? left : kFetched;
    const uint8_t* const x_next = rows.data + static_cast<size_t>(next) * rows.stride;
    const uint16_t* const w[] = {weights(block, p), Panels > 1 ? weights(block, p + 1) : nullptr};
    Sums::template accumulate<Groups, Panels>(
        [&](int64_t n, int64_t t) { return w[n] + t * kTileWeights; }, block.tiles, block.tile == 0,
        rows, block.out + m * out_stride_ + p * kPanel, out_stride_,
        [&](int64_t t) {
          for (int64_t r = 0; r < fetched; ++r)
            fetch(x_next + static_cast<size_t>(r) * rows.stride +
                  static_cast<size_t>(t) * kBf16BlockBytes);
          ahead.next_tile();
        });
  }

  struct alignas(64) Buffers {
    uint16_t weights[2][kPanels][kTiles * kTileWeights];
  };

  // The buffers do not fit onto the stack of a thread of musl, which has 128 KiB.
  static Buffers& buffers_of_thread() {
    static thread_local Buffers buffers;
    return buffers;
  }

  const PackedMatrix& w_;
  const PreparedRows& x_;
  float* out_;
  int64_t out_stride_;
  uint16_t (&decoded_)[2][kPanels][kTiles * kTileWeights] = buffers_of_thread().weights;
};

template <class S, class T>
void exact_product_amx(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                       float* out, int64_t out_stride) {
  if (x.count >= kManyRows)
    AmxManyRows<T>(w, x, out, out_stride).multiply(first, last);
  else
    exact_product_by<S>(w, first, last, x, out, out_stride);
}

}  // namespace
}  // namespace specqd
