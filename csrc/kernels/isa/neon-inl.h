// What the kernels on NEON's 128-bit registers share: loops whose steps are constants, and how many
// sums fit into the registers.
#pragma once

#include "kernels/isa/vector-inl.h"

namespace specqd {
namespace {

template <int number>
struct Constant {
  constexpr operator int() const { return number; }
};

template <class F, int... i>
[[gnu::always_inline]] inline void call_with(Indices<i...>, const F& f) {
  (f(Constant<i>{}), ...);
}

// Calls f with the constants 0 to count - 1, because instructions that take one lane of a register
// need its number at compile time.
template <int count, class F>
[[gnu::always_inline]] inline void repeat(const F& f) {
  call_with(typename IndicesBelow<count>::Type{}, f);
}

// GCC 12 would load all that an unrolled tile needs at its beginning, and then spill registers.
[[gnu::always_inline]] inline void keep_loads_below() { asm volatile("" : : : "memory"); }

// A quarter of a panel is four outputs, one register. Sums may fill 16 of the 32 registers.
constexpr int kQuarters = 4;
constexpr int quarters_at_once(int registers_per_quarter) {
  return registers_per_quarter <= 4 ? 4 : registers_per_quarter <= 8 ? 2 : 1;
}

}  // namespace
}  // namespace specqd
