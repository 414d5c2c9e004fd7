// The exact product of many rows. A few tiles of a few panels are decoded at a time and stay in the
// first-level cache while all rows are multiplied by them, so each weight is decoded once, and
// inputs are read once per group of panels. The order of each sum is the same as in product-inl.h.
#pragma once

#include "kernels/isa/product-inl.h"

namespace specqd {
namespace {

constexpr int64_t kManyRows = 64;  // from this many rows on, decoding is a small part of the work

// S provides the same as for InRowGroups.
template <class S>
class ManyRowsProduct {
 public:
  ManyRowsProduct(const PackedMatrix& w, const PreparedRows& x, float* out, int64_t out_stride)
      : w_(w), x_(x), out_(out), out_stride_(out_stride) {}

  void multiply(int64_t first, int64_t last) {
    for (int64_t panel = first; panel < last; panel += kPanels) {
      const int64_t panels = last - panel < kPanels ? last - panel : kPanels;
      float* const out = out_ + (panel - first) * kPanel;
      for (int64_t m = 0; m < x_.count; ++m)
        for (int64_t p = 0; p < panels; ++p) store(out + m * out_stride_ + p * kPanel, F16{});
      for (int64_t tile = 0; tile < w_.tiles; tile += kTiles) {
        const int64_t tiles = w_.tiles - tile < kTiles ? w_.tiles - tile : kTiles;
        for (int64_t p = 0; p < panels; ++p) decode((panel + p) * w_.tiles + tile, tiles, p);
        multiply_block(tile, tiles, panels, out);
      }
    }
  }

 private:
  static constexpr int64_t kPanels = 4, kTiles = 4;  // per block
  static constexpr size_t kLine = 64;

  void decode(int64_t tile, int64_t tiles, int64_t p) {
    tiles_[p] = w_.plain != nullptr ? w_.plain + tile * kTileWeights : decoded_[p];
    if (w_.plain != nullptr) return;
    if (w_.residuals == nullptr) {
      for (int64_t t = 0; t < tiles; ++t)
        decode_mxfp4_tile(w_, tile + t, decoded_[p] + t * kTileWeights);
      return;
    }
    typename S::Decoder decoder(w_, tile, tiles, decoded_[p]);
    while (!decoder.is_done()) decoder.whole_tile();
  }

  void multiply_block(int64_t tile, int64_t tiles, int64_t panels, float* out) {
    const auto bytes = static_cast<size_t>(tiles) * S::kBlockBytes;
    const auto x = rows_from(x_, 0, static_cast<size_t>(tile) * S::kBlockBytes);
    for_row_groups<S::kRows>(x.count, [&]<int Rows>(int64_t m) {
      const auto rows = rows_from(x, m, 0);
      for (int64_t p = 0; p < panels; ++p) {
        // Each panel prefetches a part of the next rows' inputs.
        for (int64_t next = Rows + p; next < 2 * Rows && next < rows.count; next += panels)
          for (size_t at = 0; at < bytes; at += kLine)
            fetch(rows.data + static_cast<size_t>(next) * rows.stride + at);
        S::template accumulate<Rows>(tiles_[p], tiles, rows, out + m * out_stride_ + p * kPanel,
                                     out_stride_, Nothing{});
      }
    });
  }

  const PackedMatrix& w_;
  const PreparedRows& x_;
  float* out_;
  int64_t out_stride_;
  const uint16_t* tiles_[kPanels];
  alignas(64) uint16_t decoded_[kPanels][kTiles * kTileWeights];
};

template <class S, class Plain = PlainAhead>
void exact_product_in_rows(const PackedMatrix& w, int64_t first, int64_t last,
                           const PreparedRows& x, float* out, int64_t out_stride) {
  if (x.count >= kManyRows)
    ManyRowsProduct<S>(w, x, out, out_stride).multiply(first, last);
  else
    exact_product_by<InRowGroups<S>, Plain>(w, first, last, x, out, out_stride);
}

}  // namespace
}  // namespace specqd
