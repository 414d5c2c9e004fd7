// BF16 as bits: the upper half of an fp32.
#pragma once

#include <cstdint>
#include <cstring>

namespace specqd {

constexpr uint16_t kBf16MagnitudeMask = 0x7fff;
constexpr uint16_t kBf16Infinity = 0x7f80;

static inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

}  // namespace specqd
