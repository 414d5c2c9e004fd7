#include "isa/product_avx512bf16-inl.h"

namespace specqd {

const Kernels* avx512bf16_kernels() {
  static constexpr Kernels table = avx512bf16_table("avx512bf16");
  return &table;
}

bool avx512bf16_rounds_as_fused() { return rounds_as_fused(); }

}  // namespace specqd
