#include "isa/table-inl.h"

namespace specqd {

const Kernels* avx2vnni_kernels() {
  static constexpr Kernels table = generic_table("avx2vnni");
  return &table;
}

}  // namespace specqd
