#include "kernels/isa/amx_tiles_emulated-inl.h"
#include "kernels/isa/product_amx-inl.h"

namespace specqd {

const Kernels* amx_emulated_kernels() {
  static constexpr Kernels table = amx_table<EmulatedTiles>("amx_emulated");
  return &table;
}

}  // namespace specqd
