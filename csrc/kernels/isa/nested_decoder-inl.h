// Walks over nested tiles and decodes them. Each instruction set provides the code for one row.
#pragma once

#include "kernels/isa/nested-inl.h"

namespace specqd {
namespace {

// Decodes nested tiles one after the other, and repeats the last one if asked for more. An
// instruction set provides
//   Scales(w, tile)   the scales of a tile in the form that row() needs; may prefetch
//   Patches           a class of patches-inl.h, which applies patches
//   D::row(0..15)     decodes a row of the tile, or a part of several, to out_
template <class D, class Scales, class Patches>
class NestedDecoder {
 public:
  NestedDecoder(const PackedMatrix& w, int64_t tile, int64_t count, uint16_t* out)
      : w_(w), tile_(tile), left_(count), out_(out) {
    begin_tile();
  }

  bool is_done() const { return left_ <= 0; }

  [[gnu::always_inline]] void end_tile() {
    patches_.apply(out_);
    next_tile();
  }

  void whole_tile() {
#pragma GCC unroll 16  // shifts need constant counts
    for (int r = 0; r < kBlock / 2; ++r) static_cast<D*>(this)->row(r);
    end_tile();
  }

 private:
  [[gnu::always_inline]] void begin_tile() {
    codes_ = w_.codes + tile_ * kTileCodes;
    residuals_ = w_.residuals + tile_ * kTileWeights;
    scales_ = Scales(w_, tile_);
    patches_.begin_tile(w_, tile_);
  }

  const PackedMatrix& w_;
  int64_t tile_, left_;

 protected:
  [[gnu::always_inline]] void next_tile() {
    if (--left_ <= 0) return;
    ++tile_;
    out_ += kTileWeights;
    begin_tile();
  }

  uint16_t* out_;
  const uint8_t* codes_ = nullptr;
  const uint8_t* residuals_ = nullptr;
  Scales scales_;
  Patches patches_;
};

}  // namespace
}  // namespace specqd
