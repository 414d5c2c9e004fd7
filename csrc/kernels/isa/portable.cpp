#include "kernels/isa/table-inl.h"

namespace specqd {

const Kernels* portable_kernels() {
  static constexpr Kernels table = generic_table("portable");
  return &table;
}

}  // namespace specqd
