#include "isa/table-inl.h"

namespace specqd {

const Kernels* amx_emulated_kernels() {
  static constexpr Kernels table = generic_table("amx_emulated");
  return &table;
}

}  // namespace specqd
