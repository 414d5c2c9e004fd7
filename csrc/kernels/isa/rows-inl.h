// Prepares rows of inputs for products: rounds them to BF16, or to int8 with one scale per block.
#pragma once

#include <cstring>

#include "kernels/isa/lanes-inl.h"
#include "kernels/isa/ops-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

inline size_t padded_row(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Avoids strides of a large power of two, with which rows would use few sets of the first-level
// cache.
inline size_t spread_row(size_t bytes) { return bytes % 2048 == 0 ? bytes + 17 * 64 : bytes; }

// Exact rows are fp32 values rounded to BF16, [tiles * 32].
constexpr size_t kFloatBlockBytes = kBlock * sizeof(float);
size_t exact_row_bytes(int64_t tiles) {
  return spread_row(static_cast<size_t>(tiles) * kFloatBlockBytes);
}

// On machines that multiply BF16, exact rows are BF16 values, [tiles * 32].
constexpr size_t kBf16BlockBytes = kBlock * sizeof(uint16_t);
inline size_t exact_row_bytes_bf16(int64_t tiles) {
  return spread_row(static_cast<size_t>(tiles) * kBf16BlockBytes);
}

// Calls put(k, sixteen BF16 values) for all inputs of a row, padded with zeros.
template <class Put>
inline void for_rounded_inputs(const float* x, int64_t inputs, int64_t tiles, const Put& put) {
  for (int64_t k = 0; k < tiles * kBlock; k += kLanes) {
    const int64_t rest = inputs - k;
    const F16 v = rest >= kLanes ? load(x + k) : load_part(x + k, rest > 0 ? rest : 0, 0.0f);
    put(k, convert<H16>(bits_as<U16>(round_to_bf16(v)) >> 16));
  }
}

void prepare_exact(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  auto* out = reinterpret_cast<float*>(row);
  int64_t i = 0;
  for (; i + kLanes <= inputs; i += kLanes) store(out + i, round_to_bf16(load(x + i)));
  for (; i < tiles * kBlock; i += kLanes) {
    const int64_t rest = inputs > i ? inputs - i : 0;
    store(out + i, round_to_bf16(load_part(x + i, rest, 0.0f)));
  }
}

// Calls f(first k, 32 inputs) for each block of a row; missing inputs are zeros.
template <class F>
inline void for_blocks(const float* x, int64_t inputs, int64_t tiles, const F& f) {
  for (int64_t k = 0; k < tiles * kBlock; k += kBlock) {
    if (k + kBlock <= inputs) {
      f(k, x + k);
    } else {
      float padded[kBlock] = {};
      if (k < inputs) std::memcpy(padded, x + k, static_cast<size_t>(inputs - k) * sizeof(float));
      f(k, padded);
    }
  }
}

// Draft rows are DraftBlock [tiles]. Inputs have the order of the code plane's nibbles: of each
// eight k, the low nibbles of four bytes hold 0 4 1 5 and the high nibbles 2 6 3 7. The scale is
// halved because E2M1 values are doubled. Some kernels add 12 to make weights unsigned; for them,
// the correction is -12 times the sum of the block's inputs.
constexpr int kUnsignedOffset = 12;

struct DraftBlock {
  int8_t inputs[kBlock];
  float scale;
  int32_t correction;
};

inline DraftBlock load_draft_block(const uint8_t* row, int64_t tile) {
  return load_as<DraftBlock>(row + tile * static_cast<int64_t>(sizeof(DraftBlock)));
}

size_t draft_row_bytes(int64_t tiles) {
  return spread_row(padded_row(static_cast<size_t>(tiles) * sizeof(DraftBlock)));
}

// Puts each eight bytes into the order of nibbles: exchanges 2 3 with 4 5, then 1 with 2, 5 with 6.
using Q4 = Lanes<uint64_t, 4>;
inline Q4 to_nibble_order(Q4 v) {
  const Q4 middle = (v ^ (v >> 16)) & 0x00000000ffff0000u;
  v = v ^ middle ^ (middle << 16);
  const Q4 inner = (v ^ (v >> 8)) & 0x0000ff000000ff00u;
  return v ^ inner ^ (inner << 8);
}

// A block becomes zero if its largest magnitude is outside this range, because its scale would not
// be a normal number. Magnitudes are compared as bits, so NaN is larger than any number.
constexpr int32_t kLeastDraftInput = 27 << 23;      // 2^-100
constexpr int32_t kLargestDraftInput = 0x7f7fffff;  // the largest finite fp32

DraftBlock quantize(F16 low, F16 high) {
  using B16 = Lanes<int8_t, 16>;
  DraftBlock block{};
  const auto larger = [](auto a, auto b) { return select(a > b, a, b); };
  const int32_t largest_bits =
      fold(larger(bits_as<I16>(low) & 0x7fffffff, bits_as<I16>(high) & 0x7fffffff), larger);
  if (largest_bits < kLeastDraftInput || largest_bits > kLargestDraftInput) return block;
  const float largest = bits_as<float>(largest_bits);
  const F16 inverse = splat(127.0f / largest);
  const I16 whole_low = to_int(round_even(low * inverse));
  const I16 whole_high = to_int(round_even(high * inverse));
  const auto bytes = join(convert<B16>(whole_low), convert<B16>(whole_high));
  store_as(block.inputs, to_nibble_order(bits_as<Q4>(bytes)));
  block.scale = largest / 127.0f * 0.5f;
  block.correction =
      -kUnsignedOffset * fold(whole_low + whole_high, [](auto a, auto b) { return a + b; });
  return block;
}

void prepare_draft(const float* x, int64_t inputs, int64_t tiles, uint8_t* row) {
  const auto load_sixteen = [&](int64_t at) {
    const int64_t rest = inputs - at;
    return rest >= kLanes ? load(x + at) : load_part(x + at, rest > 0 ? rest : 0, 0.0f);
  };
  for (int64_t t = 0; t < tiles; ++t)
    store_as(row + t * static_cast<int64_t>(sizeof(DraftBlock)),
             quantize(load_sixteen(t * kBlock), load_sixteen(t * kBlock + kLanes)));
}

}  // namespace
}  // namespace specqd
