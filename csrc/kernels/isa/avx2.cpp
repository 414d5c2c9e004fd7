#include "kernels/isa/product_avx2-inl.h"

namespace specqd {

const Kernels* avx2_kernels() {
  static constexpr Kernels table = avx2_table("avx2");
  return &table;
}

}  // namespace specqd
