// Puts the codes and scales of weights that are stored as MXFP4 into tile order.
#include <algorithm>
#include <cstring>

#include "weights/pack.h"

namespace specqd {
namespace {

bool is_zero(const uint8_t* codes) {  // of a block, with any signs
  return std::all_of(codes, codes + kBlock / 2, [](uint8_t byte) { return (byte & 0x77) == 0; });
}

void put_block(const uint8_t* block, int64_t n, uint8_t* tile) {
  for (int64_t k = 0; k < kBlock; ++k) {
    const int64_t row = k / 2;
    uint16_t word;
    uint8_t* const at = tile + ((row / 4) * 32 + n * 2 + k % 2) * 2;
    std::memcpy(&word, at, 2);
    const int code = block[row] >> (4 * (k % 2)) & 15;
    word = static_cast<uint16_t>(word | code << (4 * (row % 4)));
    std::memcpy(at, &word, 2);
  }
}

}  // namespace

std::shared_ptr<PackedWeight> PackedWeight::take_mxfp4(Pool& pool,
                                                       std::span<const Mxfp4Source> sources,
                                                       int64_t blocks, PackError* error) {
  const auto interleaved = static_cast<int64_t>(sources.size());
  const int64_t panels = (sources[0].rows + kPanel - 1) / kPanel * interleaved;
  const auto count = static_cast<size_t>(panels * blocks);
  auto weight = std::make_shared<PackedWeight>();
  weight->columns_ = blocks * kBlock;
  // Kernels may prefetch past the end, but never read there.
  weight->planes_ = Memory(count * (kTileCodes + kPanel) + 64);
  uint8_t* const codes = weight->planes_.data();
  uint8_t* const scales = codes + count * kTileCodes;
  std::memset(scales, 127, count * kPanel);
  for (int64_t s = 0; s < interleaved; ++s)
    for (int64_t row = 0; row < sources[static_cast<size_t>(s)].rows; ++row) {
      const Mxfp4Source& source = sources[static_cast<size_t>(s)];
      const int64_t panel = row / kPanel * interleaved + s, n = row % kPanel;
      weight->packed_row_.push_back(panel * kPanel + n);
      for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* const block = source.codes + (row * blocks + b) * (kBlock / 2);
        const uint8_t scale = source.scales[row * blocks + b];
        const int64_t tile = panel * blocks + b;
        if (is_zero(block)) continue;
        if (scale < kLeastMxfp4Scale || scale > kLargestMxfp4Scale) {
          *error = {s, row, b};
          return nullptr;
        }
        scales[tile * kPanel + n] = scale;
        put_block(block, n, codes + tile * kTileCodes);
      }
    }
  weight->matrix_.panels = panels;
  weight->matrix_.tiles = blocks;
  weight->matrix_.codes = codes;
  weight->matrix_.scales = scales;
  weight->place(pool);
  return weight;
}

}  // namespace specqd
