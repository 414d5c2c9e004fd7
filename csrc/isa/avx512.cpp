#include "isa/table-inl.h"

namespace specqd {

const Kernels* avx512_kernels() {
  static constexpr Kernels table = generic_table("avx512");
  return &table;
}

}  // namespace specqd
