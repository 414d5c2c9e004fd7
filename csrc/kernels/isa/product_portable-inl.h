// The products of the portable kernels, on sixteen virtual lanes. Other instruction sets have their
// own and compute the same bits.
#pragma once

#include "kernels/isa/product-inl.h"

namespace specqd {
namespace {

// The bits of BF16 magnitudes: of the least one that is not zero, and of the greatest.
struct Magnitudes {
  int32_t least, most;

  // Reads `count` BF16 values. An fp32 value that BF16 holds counts as two, the lower one zero.
  template <int count>
  static Magnitudes of(const void* values) {
    using S32 = Lanes<int16_t, 2 * kLanes>;
    S32 most{}, least = all<S32>(INT16_MAX);
    for (int i = 0; i < count; i += 2 * kLanes) {
      const H32 magnitudes = load_as<H32>(static_cast<const uint16_t*>(values) + i) & 0x7fff;
      most = max(most, bits_as<S32>(magnitudes));
      least = min(least, bits_as<S32>(magnitudes + 0x7fff));  // zero becomes the greatest
    }
    const auto greater = [](auto a, auto b) { return select(a > b, a, b); };
    const auto smaller = [](auto a, auto b) { return select(a < b, a, b); };
    return {fold(least, smaller) - 0x7fff + 0x10000, fold(most, greater)};
  }

  // Whether fp32 holds every product of these values and others exactly. A product has 16
  // significant bits, so it is exact if it is finite and at least 2^-126. Since (1 + x)(1 + y) >=
  // 1 + x + y, it is that large if the bits of its factors add up to at least those of 1 and
  // 2^-126. Infinities and NaN are not below the upper bound.
  bool have_exact_products_with(Magnitudes others) const {
    constexpr int32_t kLeastSum = 128 << 7, kBelow = 190 << 7;  // 2^63
    return least + others.least >= kLeastSum && most < kBelow && others.most < kBelow;
  }
};

// The exact sum, on sixteen virtual lanes.
struct GenericExact {
  static constexpr int kRows = 4;
  static constexpr size_t kBlockBytes = kFloatBlockBytes;

  class Decoder {
   public:
    Decoder(const PackedMatrix& w, int64_t tile, int64_t count, uint16_t* out)
        : w_(w), tile_(tile), end_(tile + count), out_(out) {}
    bool is_done() const { return tile_ >= end_; }
    void row(int) {}
    void end_tile() {
      if (!is_done()) whole_tile();
    }
    void whole_tile() {
      decode_tile(w_, tile_++, out_);
      out_ += kTileWeights;
    }

   private:
    const PackedMatrix& w_;
    int64_t tile_, end_;
    uint16_t* out_;
  };

  template <int Rows, class Ahead>
  static void accumulate(const uint16_t* tile, int64_t tiles, const PreparedRows& x, float* out,
                         int64_t out_stride, const Ahead& given) {
    auto ahead = given.begin();
    for (int64_t t = 0; t < tiles; ++t, tile += kTileWeights) {
      const auto block = rows_from(x, 0, static_cast<size_t>(t) * kBlockBytes);
      if constexpr (kHasFma)
        add_tile<Rows>(tile, block, out, out_stride, fma<F16>);
      else if (products_are_exact<Rows>(tile, block))
        add_tile<Rows>(tile, block, out, out_stride, [](F16 a, F16 b, F16 c) { return a * b + c; });
      else
        add_tile<Rows>(tile, block, out, out_stride, fma_bf16<F16>);
      ahead.end_tile();
    }
    while (!ahead.is_done()) ahead.whole_tile();
  }

 private:
  static const float* inputs_of(const PreparedRows& x, int row) {
    return reinterpret_cast<const float*>(x.data + row * x.stride);
  }

  template <int Rows, class MultiplyAdd>
  static void add_tile(const uint16_t* tile, const PreparedRows& x, float* out, int64_t out_stride,
                       const MultiplyAdd& multiply_add) {
    F16 even[Rows] = {}, odd[Rows] = {};
    for (int k = 0; k < kBlock; k += 2) {
      const U16 pairs = load_as<U16>(tile + k * kPanel);
      const F16 w_even = bits_as<F16>(pairs << 16), w_odd = bits_as<F16>(pairs & 0xffff0000u);
      for (int m = 0; m < Rows; ++m) {
        const float* const inputs = inputs_of(x, m) + k;
        even[m] = multiply_add(w_even, splat(inputs[0]), even[m]);
        odd[m] = multiply_add(w_odd, splat(inputs[1]), odd[m]);
      }
    }
    for (int m = 0; m < Rows; ++m) {
      float* const at = out + m * out_stride;
      store(at, load(at) + (even[m] + odd[m]));
    }
  }

  template <int Rows>
  static bool products_are_exact(const uint16_t* tile, const PreparedRows& x) {
    const auto weights = Magnitudes::of<kTileWeights>(tile);
    for (int m = 0; m < Rows; ++m)
      if (!weights.have_exact_products_with(Magnitudes::of<2 * kBlock>(inputs_of(x, m))))
        return false;
    return true;
  }
};

// Doubled E2M1 values of codes, as int16: 0 1 2 3 4 6 8 12, and their negatives from code 8 on.
inline H32 doubled_e2m1(H32 codes) {
  const H32 index = codes & 7, above_4 = index & 3;
  const H32 is_large = -(index >> 2), is_largest = above_4 & (above_4 >> 1);
  const H32 magnitude = index + (is_large & (above_4 + (is_largest << 1)));
  const H32 sign = -(codes >> 3);
  return (magnitude ^ sign) - sign;
}

// The inputs of a row of pairs in a tile, as int16: the even one in the lower half.
inline uint32_t input_pair(const DraftBlock& block, int row) {
  const int8_t* const even = block.inputs + row / 4 * 8 + row % 2 * 4 + row % 4 / 2;
  return static_cast<uint16_t>(even[0]) | static_cast<uint32_t>(even[2]) << 16;
}

void draft_product(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                   float* out, int64_t out_stride) {
  for (int64_t p = first; p < last; ++p, out += kPanel) {
    for (int64_t m = 0; m < x.count; ++m) store(out + m * out_stride, F16{});
    for (int64_t t = 0; t < w.tiles; ++t) {
      const int64_t tile = p * w.tiles + t;
      H32 weights[kBlock / 2];
      for (int row = 0; row < kBlock / 2; ++row)
        weights[row] = doubled_e2m1(row_of_codes(w.codes + tile * kTileCodes, row) & 15);
      const F16 scales = scale_values(w, tile);
      for (int64_t m = 0; m < x.count; ++m) {
        const DraftBlock block = load_draft_block(x.data + m * x.stride, t);
        H32 sums{};  // of 16 products each, which int16 holds: 16 * 12 * 127 < 2^15
        for (int row = 0; row < kBlock / 2; ++row)
          sums += weights[row] * bits_as<H32>(all<U16>(input_pair(block, row)));
        const I16 pairs = bits_as<I16>(sums), sum = (pairs << 16 >> 16) + (pairs >> 16);
        float* const at = out + m * out_stride;
        store(at, fma(to_float(sum), scales * splat(block.scale), load(at)));
      }
    }
  }
}

}  // namespace
}  // namespace specqd
