#include "kernels/isa/product_avx512-inl.h"

namespace specqd {

const Kernels* avx512_kernels() {
  static constexpr Kernels table = avx512_table("avx512");
  return &table;
}

}  // namespace specqd
