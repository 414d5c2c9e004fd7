#include "isa/table-inl.h"

namespace specqd {

const Kernels* avx2_kernels() {
  static constexpr Kernels table = generic_table("avx2");
  return &table;
}

}  // namespace specqd
