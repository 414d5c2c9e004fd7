// Decodes nested tiles into pairs of inputs that belong to one chain, the operands of vdpbf16ps.
//
// For each four inputs from k on, a woven tile holds a vector of the pairs (k + 2, k) of sixteen
// outputs and one of the pairs (k + 3, k + 1). This order costs nothing: residuals and codes must
// be spread over 16 bits in any case, and two byte permutations (VBMI) can spread them in any
// order.
#pragma once

#include "kernels/isa/product_avx512-inl.h"

namespace specqd {
namespace {

// Where each half of a lane comes from, for the even and for the odd chain.
struct WovenOrder {
  alignas(64) uint8_t residual[2][64];  // index of a byte in two rows; every second is zeroed
  alignas(64) uint8_t code[2][2][64];   // [rows 0 1 or 2 3][chain] first bit in 64 bits of codes
  constexpr WovenOrder() : residual(), code() {
    for (int chain = 0; chain < 2; ++chain)
      for (int n = 0; n < kPanel; ++n)
        for (int row = 0; row < 2; ++row) {
          const int at = n * 4 + (1 - row) * 2;  // the later input comes first
          residual[chain][at] = static_cast<uint8_t>(row * 32 + n * 2 + chain);
          for (int rows = 0; rows < 2; ++rows)
            code[rows][chain][at] =
                static_cast<uint8_t>(n % 2 * 32 + chain * 16 + (rows * 2 + row) * 4);
        }
  }
};
constexpr WovenOrder kWovenOrder;

struct InWovenOrder {
  // The bits of a position are three of the row, one bit r, four of the output, and the chain. In a
  // woven tile, r and the chain exchange places, and r is inverted.
  static H16 upper_bytes(H16 patches) {
    const H16 differ = (patches ^ patches >> 5) & 1 << 7;
    return (patches ^ differ ^ differ << 5 ^ 1 << 7) >> 6 | 1;
  }
};

// Like Avx512DecoderBy, but two rows of a tile at a time.
class WovenDecoder
    : public NestedDecoder<WovenDecoder, Avx512Scales<FetchNear>, PatchesBySixteen<InWovenOrder>> {
 public:
  static constexpr bool kIsWoven = true;

  using NestedDecoder::NestedDecoder;

  [[gnu::always_inline]] void row(int r) {
    if (r % 2 == 0) decode_two_rows(r / 2);
  }

 private:
  [[gnu::always_inline]] void decode_two_rows(int i) {
    if (i < 4) FetchNear::from(codes_ + i * 64 + FetchNear::kTilesAhead * kTileCodes);
    FetchNear::from(residuals_ + i * 64 + FetchNear::kTilesAhead * kTileWeights);
    const __m512i residuals = _mm512_loadu_si512(residuals_ + i * 64);
    const __m512i codes = _mm512_loadu_si512(codes_ + i / 2 * 64);
#pragma GCC unroll 2
    for (int chain = 0; chain < 2; ++chain) {
      const __m512i residual = _mm512_maskz_permutexvar_epi8(
          0x5555555555555555, _mm512_load_si512(kWovenOrder.residual[chain]), residuals);
      const __m512i nibbles =
          _mm512_multishift_epi64_epi8(_mm512_load_si512(kWovenOrder.code[i % 2][chain]), codes);
      const __m512i least = _mm512_permutexvar_epi16(nibbles, _mm512_load_si512(kCodeWords.word));
      _mm512_store_si512(out_ + i * 64 + chain * 32,
                         _mm512_add_epi16(least, _mm512_add_epi16(scales_.bits, residual)));
    }
  }
};

}  // namespace
}  // namespace specqd
