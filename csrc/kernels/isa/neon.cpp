#include "kernels/isa/product_neon-inl.h"

namespace specqd {

const Kernels* neon_kernels() {
  static constexpr Kernels table = neon_table("neon");
  return &table;
}

}  // namespace specqd
