// What this x86-64 CPU can do, with the system's support of its registers.
#pragma once

#if defined(__x86_64__)

#include <string>

namespace specqd {

struct X86Features {
  bool avx2 = false;          // and FMA
  bool avx_vnni = false;      // and AVX2
  bool avx512 = false;        // F, BW, VL, DQ, VNNI, and BMI2
  bool avx512_bf16 = false;   // and VBMI; with the rounding that the exact product needs
  bool half_vectors = false;  // whether a 512-bit vector takes two cycles, as on Zen 4
};
// Read once, because CPUID calls the hypervisor in a virtual machine, for 3.5 microseconds or more.
const X86Features& x86_features();

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
