#include "kernels/isa/product_neon-inl.h"

namespace specqd {

const Kernels* neondot_kernels() {
  static constexpr Kernels table = neon_table("neondot");
  return &table;
}

}  // namespace specqd
