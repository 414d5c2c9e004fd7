// Prepares draft rows with NEON; the bits are the same as those of rows-inl.h.
#pragma once

#include "kernels/isa/neon-inl.h"
#include "kernels/isa/rows-inl.h"

namespace specqd {
namespace {

// Sixteen integers as bytes, in the order of the code plane's nibbles.
[[gnu::always_inline]] inline int8x16_t bytes_in_nibble_order(const int32x4_t (&whole)[4]) {
  static constexpr uint8_t kOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
  int16x8_t words[2];
  for (int i = 0; i < 2; ++i)
    words[i] =
        vuzp1q_s16(vreinterpretq_s16_s32(whole[2 * i]), vreinterpretq_s16_s32(whole[2 * i + 1]));
  const int8x16_t bytes = vuzp1q_s8(vreinterpretq_s8_s16(words[0]), vreinterpretq_s8_s16(words[1]));
  return vqtbl1q_s8(bytes, vld1q_u8(kOrder));
}

// Like quantize() of rows-inl.h.
inline DraftBlock quantize_neon(const float* x) {
  DraftBlock block{};
  int32x4_t most = vdupq_n_s32(0);
  for (int i = 0; i < kBlock; i += 4)
    most = vmaxq_s32(most, vreinterpretq_s32_f32(vabsq_f32(vld1q_f32(x + i))));
  const int32_t largest_bits = vmaxvq_s32(most);
  if (largest_bits < kLeastDraftInput || largest_bits > kLargestDraftInput) return block;
  const float largest = bits_as<float>(largest_bits);
  const float inverse = 127.0f / largest;
  int32_t sum = 0;
  for (int half = 0; half < 2; ++half) {
    int32x4_t whole[4];
    for (int i = 0; i < 4; ++i)
      whole[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + half * 16 + i * 4), inverse));
    const int8x16_t bytes = bytes_in_nibble_order(whole);
    vst1q_s8(block.inputs + half * 16, bytes);
    sum += vaddlvq_s8(bytes);
  }
  block.scale = largest / 127.0f * 0.5f;
  block.correction = -kUnsignedOffset * sum;
  return block;
}

void prepare_draft_neon(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  for_blocks(x, inputs, tiles, [&](int64_t k, const float* block) {
    store_as(row + k / kBlock * static_cast<int64_t>(sizeof(DraftBlock)), quantize_neon(block));
  });
}

}  // namespace
}  // namespace specqd
