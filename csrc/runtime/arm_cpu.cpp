#include "runtime/arm_cpu.h"

#include <cstdio>

#include "runtime/system.h"

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(_WIN32)
#include <windows.h>
#endif
#endif

namespace specqd {
namespace {

struct Core {
  uint32_t implementer, part;  // bits 31 to 24 and 15 to 4 of the register
  const char* name;
};

// From the cores' technical reference manuals and Linux's asm/cputype.h.
constexpr Core kCores[] = {
    {0x41, 0xd03, "Arm Cortex-A53"},    {0x41, 0xd05, "Arm Cortex-A55"},
    {0x41, 0xd07, "Arm Cortex-A57"},    {0x41, 0xd08, "Arm Cortex-A72"},
    {0x41, 0xd09, "Arm Cortex-A73"},    {0x41, 0xd0a, "Arm Cortex-A75"},
    {0x41, 0xd0b, "Arm Cortex-A76"},    {0x41, 0xd0c, "Arm Neoverse-N1"},
    {0x41, 0xd0d, "Arm Cortex-A77"},    {0x41, 0xd40, "Arm Neoverse-V1"},
    {0x41, 0xd41, "Arm Cortex-A78"},    {0x41, 0xd44, "Arm Cortex-X1"},
    {0x41, 0xd46, "Arm Cortex-A510"},   {0x41, 0xd47, "Arm Cortex-A710"},
    {0x41, 0xd48, "Arm Cortex-X2"},     {0x41, 0xd49, "Arm Neoverse-N2"},
    {0x41, 0xd4d, "Arm Cortex-A715"},   {0x41, 0xd4e, "Arm Cortex-X3"},
    {0x41, 0xd4f, "Arm Neoverse-V2"},   {0x41, 0xd80, "Arm Cortex-A520"},
    {0x41, 0xd81, "Arm Cortex-A720"},   {0x41, 0xd82, "Arm Cortex-X4"},
    {0x41, 0xd84, "Arm Neoverse-V3"},   {0x41, 0xd85, "Arm Cortex-X925"},
    {0x41, 0xd87, "Arm Cortex-A725"},   {0x41, 0xd8e, "Arm Neoverse-N3"},
    {0x46, 0x001, "Fujitsu A64FX"},     {0x48, 0xd01, "HiSilicon TSV110"},
    {0x51, 0x001, "Qualcomm Oryon"},    {0xc0, 0xac3, "Ampere AmpereOne"},
    {0xc0, 0xac4, "Ampere AmpereOneA"}, {0x4e, 0x004, "NVIDIA Carmel"},
};

}  // namespace

std::string arm_core_name(uint32_t midr) {
  for (const Core& core : kCores)
    if (core.implementer == midr >> 24 && core.part == (midr >> 4 & 0xfff)) return core.name;
  char text[32];
  std::snprintf(text, sizeof(text), "ARM CPU 0x%08x", midr);
  return text;
}

#if defined(__aarch64__)
bool has_dot_products() {
#if defined(__linux__)
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kAsimdDp) != 0;
#elif defined(__APPLE__)
  return sysctl_number("hw.optional.arm.FEAT_DotProd") > 0;
#elif defined(_WIN32)
  constexpr DWORD kDotProducts = 43;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
  return IsProcessorFeaturePresent(kDotProducts) != 0;
#else
  return false;
#endif
}

uint32_t main_id_register() {
  uint64_t midr = 0;
#if defined(__linux__)
  constexpr unsigned long kCpuid = 1ul << 11;  // HWCAP_CPUID: Linux lets programs read the register
  if ((getauxval(AT_HWCAP) & kCpuid) != 0) asm("mrs %0, midr_el1" : "=r"(midr));
#endif
  return static_cast<uint32_t>(midr);
}
#endif

}  // namespace specqd
