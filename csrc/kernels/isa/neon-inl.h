// What the kernels on NEON's 128-bit registers share: the order of loads, and how many sums fit
// into the registers.
#pragma once

#include "kernels/isa/vector-inl.h"

namespace specqd {
namespace {

// GCC 12 would load all that an unrolled tile needs at its beginning, and then spill registers.
[[gnu::always_inline]] inline void keep_loads_below() { asm volatile("" : : : "memory"); }

// A quarter of a panel is four outputs, one register. Sums may fill 16 of the 32 registers.
constexpr int kQuarters = 4;
constexpr int quarters_at_once(int registers_per_quarter) {
  return registers_per_quarter <= 4 ? 4 : registers_per_quarter <= 8 ? 2 : 1;
}

}  // namespace
}  // namespace specqd
