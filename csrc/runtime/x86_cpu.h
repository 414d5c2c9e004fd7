// What this x86-64 CPU can do, with the system's support of its registers.
#pragma once

#if defined(__x86_64__)

#include <string>

namespace specqd {

bool has_avx2();          // and FMA
bool has_avx_vnni();      // and AVX2
bool has_avx512();        // F, BW, VL, DQ, VNNI, and BMI2
bool has_avx512_bf16();   // and VBMI; with the rounding that the exact product needs
bool has_half_vectors();  // whether a 512-bit vector takes two cycles, as on Zen 4

struct Amx {
  bool usable = false;
  std::string refusal;  // why the system does not let this process use it; empty if it does
  bool in_cpu = false;
};
const Amx& amx();

// The CPU's own name; empty if it has none.
std::string x86_cpu_name();

}  // namespace specqd

#endif
