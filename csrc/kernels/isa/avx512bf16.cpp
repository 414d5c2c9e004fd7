#include "kernels/isa/product_avx512bf16-inl.h"

namespace specqd {

const Kernels* avx512bf16_kernels(bool has_half_vectors) {
  static constexpr Kernels whole = avx512bf16_table<WholeVectors>("avx512bf16");
  static constexpr Kernels half = avx512bf16_table<HalfVectors>("avx512bf16");
  return has_half_vectors ? &half : &whole;
}

bool avx512bf16_rounds_as_fused() { return rounds_as_fused(); }

}  // namespace specqd
