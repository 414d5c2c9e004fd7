#include "isa/table-inl.h"

namespace specqd {

const Kernels* amx_kernels() {
  static constexpr Kernels table = generic_table("amx");
  return &table;
}

}  // namespace specqd
