// Prepares rows with 256-bit registers; the bits are the same as those of rows-inl.h.
#pragma once

#include "kernels/isa/product-inl.h"

namespace specqd {
namespace {

[[maybe_unused]] void prepare_exact_avx2(const float* x, int64_t inputs, int64_t tiles,
                                         uint8_t* row) {
  for_blocks(x, inputs, tiles, [&](int64_t k, const float* block) {
    for (int i = 0; i < kBlock; i += 8) {
      const __m256 v = _mm256_loadu_ps(block + i);
      const __m256i bits = _mm256_castps_si256(v);
      const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i up = _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff));
      const __m256i rounded =
          _mm256_and_si256(_mm256_add_epi32(bits, up), _mm256_set1_epi32(-65536));
      const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
      const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
      _mm256_storeu_ps(
          reinterpret_cast<float*>(row) + k + i,
          _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(nan), is_nan));
    }
  });
}

template <class F>
inline int32_t fold_eight(__m256i v, const F& f) {
  __m128i four = f(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  four = f(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(f(four, _mm_shuffle_epi32(four, 0xb1)));
}

// Like quantize() of rows-inl.h. On machines that cannot add products of bytes to 32-bit sums, the
// correction holds two 16-bit numbers: one for the first two of each four inputs, one for the
// others.
template <bool HasByteProducts>
inline DraftBlock quantize_avx2(const float* x) {
  DraftBlock block{};
  __m256 part[4];
  __m256i whole[4], largest_lanes = _mm256_setzero_si256(), sum = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    part[i] = _mm256_loadu_ps(x + 8 * i);
    const __m256i magnitude =
        _mm256_and_si256(_mm256_castps_si256(part[i]), _mm256_set1_epi32(0x7fffffff));
    largest_lanes = _mm256_max_epi32(largest_lanes, magnitude);
  }
  const int32_t largest_bits =
      fold_eight(largest_lanes, [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
  if (largest_bits < kLeastDraftInput || largest_bits > kLargestDraftInput) return block;
  const float largest = bits_as<float>(largest_bits);
  const __m256 inverse = _mm256_set1_ps(127.0f / largest);
  for (int i = 0; i < 4; ++i) {
    whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(part[i], inverse));
    sum = _mm256_add_epi32(sum, whole[i]);
  }
  // Packing puts the first four of each eight inputs into the lower half, the others into the
  // upper.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]),
                                           _mm256_packs_epi32(whole[2], whole[3]));
  const __m128i left = _mm256_castsi256_si128(bytes), right = _mm256_extracti128_si256(bytes, 1);
  store_as(block.inputs, _mm_unpacklo_epi8(left, right));
  store_as(block.inputs + 16, _mm_unpackhi_epi8(left, right));
  block.scale = largest / 127.0f * 0.5f;
  if constexpr (HasByteProducts) {
    block.correction = -kUnsignedOffset *
                       fold_eight(sum, [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
  } else {
    const __m256i inputs = load_as<__m256i>(block.inputs);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(kUnsignedOffset), inputs);
    block.correction = fold_eight(_mm256_sub_epi16(_mm256_setzero_si256(), pairs),
                                  [](__m128i a, __m128i b) { return _mm_add_epi16(a, b); });
  }
  return block;
}

template <bool HasByteProducts = true>
void prepare_draft_avx2(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  for_blocks(x, inputs, tiles, [&](int64_t k, const float* block) {
    store_as(row + k / kBlock * static_cast<int64_t>(sizeof(DraftBlock)),
             quantize_avx2<HasByteProducts>(block));
  });
}

}  // namespace
}  // namespace specqd
