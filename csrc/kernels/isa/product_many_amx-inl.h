// The exact product of many rows on tile registers. Four tiles of sums (32 rows by two panels)
// share two tiles of inputs and two of weights, so each multiplication needs only one load of a
// tile.
#pragma once

#include "kernels/isa/amx_tiles-inl.h"
#include "kernels/isa/product_avx512-inl.h"

namespace specqd {
namespace {

// Tiles 0 1 hold the sums of 16 rows by two panels, and tiles 2 3 those of the next 16 rows. Inputs
// are in tiles 4 5 and weights in tiles 6 7.
template <class T>
struct AmxSquare {
  static constexpr int64_t kRows = 2 * kTileRows, kPanels = 2;

  // Configures the tiles and calls f<number of groups of 16 rows>(first row) for all rows.
  template <class F>
  [[gnu::always_inline]] static void for_rows(int64_t count, const F& f) {
    for (int64_t m = 0; m < count; m += kRows) {
      const int64_t rows = count - m < kRows ? count - m : kRows;
      if (m == 0 || rows < kRows) configure(rows);
      if (rows > kTileRows)
        f.template operator()<2>(m);
      else
        f.template operator()<1>(m);
    }
  }

  // out += `count` tiles of one or two panels; if `begins`, out is taken as zero. Calls each(t)
  // after each tile.
  template <int Groups, int Panels, class Each>
  [[gnu::always_inline]] static void accumulate(const uint16_t* const (&w)[kPanels], int64_t count,
                                                bool begins, const PreparedRows& x, float* out,
                                                int64_t out_stride, const Each& each) {
    for_sums<Groups, Panels>(out, out_stride, [&]<int Sum>(float* sums, size_t stride) {
      begins ? T::template zero<Sum>() : T::template load<Sum>(sums, stride);
    });
    for (int64_t t = 0; t < count; ++t) {
      const uint8_t* const inputs = x.data + static_cast<size_t>(t) * kBf16BlockBytes;
      T::template load<4>(inputs, x.stride);
      if constexpr (Groups > 1) T::template load<5>(inputs + kTileRows * x.stride, x.stride);
      T::template load<6>(w[0] + t * kTileWeights, 64);
      if constexpr (Panels > 1) T::template load<7>(w[1] + t * kTileWeights, 64);
      T::template dot_bf16<0, 4, 6>();
      if constexpr (Panels > 1) T::template dot_bf16<1, 4, 7>();
      if constexpr (Groups > 1) T::template dot_bf16<2, 5, 6>();
      if constexpr (Groups > 1 && Panels > 1) T::template dot_bf16<3, 5, 7>();
      each(t);
    }
    for_sums<Groups, Panels>(out, out_stride, [&]<int Sum>(float* sums, size_t stride) {
      T::template store<Sum>(sums, stride);
    });
  }

 private:
  static void configure(int64_t rows) {
    TileShapes shapes;
    const auto shape = [&](int tile, int64_t count) {
      shapes.rows[tile] = static_cast<uint8_t>(count < kTileRows ? count : kTileRows);
      shapes.row_bytes[tile] = count > 0 ? 64 : 0;
    };
    for (int i = 0; i < 2; ++i) {
      const int64_t group = rows > i * kTileRows ? rows - i * kTileRows : 0;
      shape(2 * i, group);
      shape(2 * i + 1, group);
      shape(4 + i, group);
      shape(6 + i, kTileRows);
    }
    T::configure(shapes);
  }

  template <int Groups, int Panels, class F>
  [[gnu::always_inline]] static void for_sums(float* out, int64_t out_stride, const F& f) {
    const size_t stride = static_cast<size_t>(out_stride) * sizeof(float);
    float* const below = out + kTileRows * out_stride;
    f.template operator()<0>(out, stride);
    if constexpr (Panels > 1) f.template operator()<1>(out + kPanel, stride);
    if constexpr (Groups > 1) f.template operator()<2>(below, stride);
    if constexpr (Groups > 1 && Panels > 1) f.template operator()<3>(below + kPanel, stride);
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
  using Square = AmxSquare<T>;
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
    Square::for_rows(x_.count, [&]<int Groups>(int64_t m) {
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
    constexpr int64_t kFetched = Square::kRows * 2 / kPanels;
    const int64_t next = Square::kRows + p / 2 * kFetched, left = rows.count - next;
    const int64_t fetched = left < kFetched ? left : kFetched;
    const uint8_t* const x_next = rows.data + static_cast<size_t>(next) * rows.stride;
    const uint16_t* const w[] = {weights(block, p), Panels > 1 ? weights(block, p + 1) : nullptr};
    Square::template accumulate<Groups, Panels>(
        w, block.tiles, block.tile == 0, rows, block.out + m * out_stride_ + p * kPanel,
        out_stride_, [&](int64_t t) {
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

template <class S, class T>
void accumulate_plain_amx(const PlainPanels& w, const PreparedRows& x, float* out,
                          int64_t out_stride) {
  using Square = AmxSquare<T>;
  if (x.count <= S::kRows)
    return accumulate_plain_by<S, PlainAheadBy<FetchIntoSecondLevel>>(w, x, out, out_stride);
  Square::for_rows(x.count, [&]<int Groups>(int64_t m) {
    const PreparedRows rows = rows_from(x, m, 0);
    const uint16_t* const ahead = m == 0 ? w.next : nullptr;
    for (int64_t p = 0; p < w.panels; p += 2) {
      const int64_t second = p + 1 < w.panels ? w.stride : 0;
      const uint16_t* const tiles[] = {w.data + p * w.stride, w.data + p * w.stride + second};
      float* const at = out + m * out_stride + p * kPanel;
      const auto each = [&](int64_t t) {
        if (ahead == nullptr) return;
        const uint16_t* const next = ahead + p * w.stride + t * kTileWeights;
        for (int64_t i = 0; i < kTileWeights; i += 32) {
          FetchIntoSecondLevel::from(next + i);
          FetchIntoSecondLevel::from(next + second + i);
        }
      };
      if (second > 0)
        Square::template accumulate<Groups, 2>(tiles, w.tiles, false, rows, at, out_stride, each);
      else
        Square::template accumulate<Groups, 1>(tiles, w.tiles, false, rows, at, out_stride, each);
    }
  });
  T::release();
}

}  // namespace
}  // namespace specqd
