#include "kernels/isa/product_amx-inl.h"

namespace specqd {

const Kernels* amx_kernels() {
  static constexpr Kernels table = amx_table<HardwareTiles>("amx");
  return &table;
}

}  // namespace specqd
