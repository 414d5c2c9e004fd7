// What the matrix products of all instruction sets share, in the exact and the fp4 precision.
//
// Exact: for each block of 32 inputs, one chain of fused multiply-adds runs over even k and another
// over odd k; their sum is added to the accumulator. AMX's tdpbf16ps has this order. fp4: for each
// block, int8 inputs times doubled E2M1 values are summed exactly as integers, and one fused
// multiply-add applies the product of the two scales. Blocks are added in the order of K.
#pragma once

#include "kernels/isa/lanes-inl.h"
#include "kernels/isa/nested_decoder-inl.h"
#include "kernels/isa/rows-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

// Products prefetch planes this many tiles before their use.
constexpr int kExactTilesAhead = 8;
constexpr int kPlainTilesAhead = 8;
constexpr int kDraftTilesNear = 16, kDraftTilesFar = 24;

// Inlining is forced because GCC 12 drops calls of a function that only prefetches: it sees no
// effects.
[[gnu::always_inline]] inline void fetch(const void* at) { __builtin_prefetch(at); }

// Prefetches codes of the draft weights in two steps: far ahead into the second-level cache, then
// into the first. Fetching them from memory directly into the first-level cache would fill its few
// line buffers, which made a draft of one row a tenth slower.
[[gnu::always_inline]] inline void fetch_codes(const uint8_t* codes) {
  __builtin_prefetch(codes + kDraftTilesFar * kTileCodes, 0, 2);
  __builtin_prefetch(codes + kDraftTilesNear * kTileCodes);
}

// Ways to prefetch: the distance in tiles, and the cache level.
struct FetchNear {
  static constexpr int kTilesAhead = kExactTilesAhead;
  [[gnu::always_inline]] static void from(const void* at) { __builtin_prefetch(at); }
};
// Prefetches far ahead into the second-level cache, then into the first.
struct FetchInTwoSteps {
  static constexpr int kTilesAhead = 12;
  [[gnu::always_inline]] static void from(const uint8_t* at) {
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch(at - 4 * kTileWeights);
  }
  [[gnu::always_inline]] static void from(const uint16_t* at) { __builtin_prefetch(at); }
};
struct FetchIntoSecondLevel {
  static constexpr int kTilesAhead = 2 * kExactTilesAhead;
  [[gnu::always_inline]] static void from(const void* at) { __builtin_prefetch(at, 0, 2); }
};

// Exact precision.

// Calls f<rows>(first); `rows` is between 1 and Most.
template <int Most, class F>
[[gnu::always_inline]] inline void call_for_rows(int64_t rows, int64_t first, const F& f) {
  if constexpr (Most > 1)
    if (rows < Most) return call_for_rows<Most - 1>(rows, first, f);
  f.template operator()<Most>(first);
}

// Splits rows into as few groups of at most `Most` rows as possible, of nearly equal size, and
// calls f<Rows>(first row) for each group.
template <int Most, class F>
inline void for_row_groups(int64_t rows, const F& f) {
  int64_t first = 0;
  for (int64_t groups = (rows + Most - 1) / Most; groups > 0; --groups) {
    const int64_t size = (rows - first + groups - 1) / groups;
    call_for_rows<Most>(size, first, f);
    first += size;
  }
}

// The work that a product interleaves with its multiplications is described by an object whose
// begin() starts it. This one is empty.
struct Nothing {
  Nothing begin() const { return {}; }
  bool is_done() const { return true; }
  void row(int) {}
  void end_tile() {}
  void whole_tile() {}
};

// Prefetches plain tiles.
template <class Fetch>
struct PlainAheadBy {
  PlainAheadBy(const uint16_t* first, int64_t count) : tile(first), left(count) {}
  PlainAheadBy begin() const { return *this; }
  const uint16_t* tile;
  int64_t left;
  bool is_done() const { return left <= 0; }
  [[gnu::always_inline]] void row(int r) { Fetch::from(tile + r * 2 * kPanel); }
  void end_tile() {
    tile += kTileWeights;
    --left;
  }
  void whole_tile() {
    for (int r = 0; r < kBlock / 2; ++r) row(r);
    end_tile();
  }
};

using PlainAhead = PlainAheadBy<FetchNear>;

// Leaves prefetching to the processor, which recognises that plain tiles are one stream.
struct PlainUnfetched : Nothing {
  PlainUnfetched(const uint16_t*, int64_t) {}
};

// Decoding of `count` tiles. The decoder itself is made where it runs, which is faster than copying
// it there.
template <class Decoder>
struct DecoderAhead {
  const PackedMatrix& w;
  int64_t tile, count;
  uint16_t* out;
  Decoder begin() const { return {w, tile, count, out}; }
};

inline PreparedRows rows_from(const PreparedRows& x, int64_t row, size_t bytes) {
  return {x.data + static_cast<size_t>(row) * x.stride + bytes, x.stride, x.count - row};
}

// The exact product of an instruction set S, which provides
//   kDecodedAhead                  how many tiles decoding is ahead of multiplying
//   kBlockBytes                    bytes of a prepared row per block of 32 inputs
//   Scope(rows)                    an object that exists while products of this many rows run
//   Decoder(w, tile, count, out)   decodes `count` nested tiles. For each tile, the product calls
//                                  row(0) to row(15) and then end_tile(), or whole_tile(). After
//                                  the last tile, is_done() is true and row() repeats that tile.
//   multiply(tiles, count, x, out, out_stride, ahead)
//                                  out[m][n] += `count` tiles; meanwhile finishes `ahead`
//
// Tiles are decoded into a ring, in the order of memory and across the ends of panels, a fixed
// number of tiles before they are multiplied. This way decoding and multiplying, which use
// different parts of the processor, overlap; memory is read evenly; and the narrow stores of
// patches finish long before wide loads read the same bytes.
template <class S, class Plain>
class ExactProduct {
 public:
  ExactProduct(const PackedMatrix& w, const PreparedRows& x, float* out, int64_t out_stride)
      : w_(w), x_(x), out_(out), out_stride_(out_stride) {}

  void multiply(int64_t first, int64_t last) {
    const typename S::Scope scope(x_.count);
    first_ = first * w_.tiles;
    const int64_t tiles = (last - first) * w_.tiles;
    const bool is_nested = w_.residuals != nullptr;
    if (is_nested && tiles > 0) finish(decoder(0, least(kAhead, tiles)));
    for (int64_t tile = 0, count; tile < tiles; tile += count) {
      const int64_t in_panel = tile % w_.tiles, ahead = tile + kAhead;
      if (in_panel == 0)
        for (int64_t m = 0; m < x_.count; ++m) store(out_ + m * out_stride_, F16{});
      count = least(w_.tiles - in_panel, kAhead - tile % kAhead);
      const auto x = rows_from(x_, 0, static_cast<size_t>(in_panel) * S::kBlockBytes);
      if (w_.plain != nullptr)
        S::multiply(plain(tile), count, x, out_, out_stride_,
                    Plain(plain(tile + kPlainTilesAhead), count));
      else if (!is_nested)
        S::multiply(decode_mxfp4(tile, count), count, x, out_, out_stride_, Nothing{});
      else if (ahead < tiles)
        S::multiply(place(tile), count, x, out_, out_stride_,
                    decoder(ahead, least(count, tiles - ahead)));
      else
        S::multiply(place(tile), count, x, out_, out_stride_, Nothing{});
      if (in_panel + count == w_.tiles) out_ += kPanel;
    }
  }

 private:
  using Decoder = typename S::Decoder;
  static constexpr int64_t kAhead = S::kDecodedAhead;

  // Tiles are numbered from first_. A run of decoded tiles never crosses the halves of the ring.
  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
  const uint16_t* plain(int64_t tile) const { return w_.plain + (first_ + tile) * kTileWeights; }
  uint16_t* place(int64_t tile) { return ring_ + tile % (2 * kAhead) * kTileWeights; }
  DecoderAhead<Decoder> decoder(int64_t tile, int64_t count) {
    return {w_, first_ + tile, count, place(tile)};
  }
  static void finish(const DecoderAhead<Decoder>& ahead) {
    auto decoder = ahead.begin();
    while (!decoder.is_done()) decoder.whole_tile();
  }
  const uint16_t* decode_mxfp4(int64_t tile, int64_t count) {
    for (int64_t t = tile; t < tile + count; ++t) decode_mxfp4_tile(w_, first_ + t, place(t));
    return place(tile);
  }

  const PackedMatrix& w_;
  const PreparedRows& x_;
  float* out_;
  int64_t out_stride_;
  int64_t first_ = 0;  // tile
  alignas(64) uint16_t ring_[2 * kAhead * kTileWeights];
};

template <class S, class Plain = PlainAhead>
void exact_product_by(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                      float* out, int64_t out_stride) {
  if (x.count > 0) ExactProduct<S, Plain>(w, x, out, out_stride).multiply(first, last);
}

// Multiplies any number of rows in groups. The instruction set S provides
//   kRows                          the most rows that it multiplies at once
//   kBlockBytes                    bytes of a prepared row per block of 32 inputs
//   accumulate<Rows>(tiles, count, x, out, out_stride, ahead)
//                                  out[m][n] += `count` tiles; interleaves each row of a tile with
//                                  one row of `ahead`'s tile, and finishes `ahead`
template <class S>
struct InRowGroups {
  static constexpr int kDecodedAhead = 4;
  static constexpr size_t kBlockBytes = S::kBlockBytes;
  using Decoder = typename S::Decoder;
  struct Scope {
    explicit Scope(int64_t) {}
  };

  template <class Ahead>
  static void multiply(const uint16_t* tiles, int64_t count, const PreparedRows& x, float* out,
                       int64_t out_stride, const Ahead& ahead) {
    for_row_groups<S::kRows>(x.count, [&]<int Rows>(int64_t m) {
      const auto rows = rows_from(x, m, 0);
      float* const at = out + m * out_stride;
      if (m == 0)
        S::template accumulate<Rows>(tiles, count, rows, at, out_stride, ahead);
      else
        S::template accumulate<Rows>(tiles, count, rows, at, out_stride, Nothing{});
    });
  }
};

// fp4 precision.

constexpr int8_t kDoubledE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Doubled E2M1 values plus 12, which makes them unsigned.
struct UnsignedWeights {
  alignas(16) uint8_t of_code[16];
  constexpr UnsignedWeights() : of_code() {
    for (int i = 0; i < 16; ++i)
      of_code[i] = static_cast<uint8_t>(kDoubledE2m1[i] + kUnsignedOffset);
  }
};
constexpr UnsignedWeights kUnsignedWeights;

inline F16 scale_values(const PackedMatrix& w, int64_t tile) {
  const U16 bytes = convert<U16>(load_as<Lanes<uint8_t, kPanel>>(w.scales + tile * kPanel));
  return bits_as<F16>((bytes << w.scale.shift) + w.scale.base);
}

}  // namespace
}  // namespace specqd
