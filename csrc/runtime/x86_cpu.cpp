#include "runtime/x86_cpu.h"

#if defined(__x86_64__)

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/float_mode.h"
#include "kernels/kernels.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace specqd {
namespace {

struct Cpuid {
  uint32_t eax, ebx = 0, ecx, edx = 0;
};

// The compilers' own __builtin_cpu_supports answers nothing in some of their runtimes.
Cpuid cpuid(uint32_t leaf, uint32_t part = 0) {
  Cpuid id{.eax = leaf, .ecx = part};
  asm volatile("cpuid" : "+a"(id.eax), "=b"(id.ebx), "+c"(id.ecx), "=d"(id.edx));
  return id;
}

// The registers that the system saves for a thread (XCR0); 0 if it uses no XSAVE.
uint32_t saved_registers() {
  constexpr uint32_t kOsXsave = 1u << 27;
  if ((cpuid(1).ecx & kOsXsave) == 0) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr uint32_t kAvxRegisters = 0x6;
#if defined(__APPLE__)
constexpr uint32_t kAvx512Registers = kAvxRegisters;  // macOS sets the others at their first use
#else
constexpr uint32_t kAvx512Registers = 0xe6;
#endif

// Leaf 7; zeros if the CPU has no such part of it.
Cpuid features(uint32_t part = 0) {
  if (cpuid(0).eax < 7 || cpuid(7).eax < part) return {.eax = 0, .ecx = 0};
  return cpuid(7, part);
}

constexpr bool has_all(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

bool has_avx512() {
  constexpr uint32_t kBmi2 = 1u << 8, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  constexpr uint32_t kVnni = 1u << 11;
  return has_all(saved_registers(), kAvx512Registers) &&
         has_all(features().ebx, kBmi2 | kF | kDq | kBw | kVl) && has_all(features().ecx, kVnni);
}

bool has_avx2() {
  constexpr uint32_t kFma = 1u << 12, kAvx = 1u << 28, kAvx2 = 1u << 5;
  return has_all(saved_registers(), kAvxRegisters) && has_all(cpuid(1).ecx, kFma | kAvx) &&
         has_all(features().ebx, kAvx2);
}

bool has_avx512_bf16() {
  constexpr uint32_t kVbmi = 1u << 1, kBf16 = 1u << 5;
  if (!has_all(features().ecx, kVbmi) || !has_all(features(1).eax, kBf16)) return false;
  const FlushSubnormals flush;
  return avx512bf16_rounds_as_fused();
}

bool has_half_vectors() {
  constexpr uint32_t kAuth = 0x68747541, kZen3And4 = 0x19;  // "Auth", of AuthenticAMD
  if (cpuid(0).ebx != kAuth) return false;
  const uint32_t eax = cpuid(1).eax;
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff) == kZen3And4;
}

X86Features read_features() {
  X86Features found;
  found.avx2 = has_avx2();
  found.avx_vnni = found.avx2 && has_all(features(1).eax, 1u << 4);
  found.avx512 = found.avx2 && has_avx512();
  found.avx512_bf16 = found.avx512 && has_avx512_bf16();
  found.half_vectors = has_half_vectors();
  return found;
}

// Linux lets a process use the tile registers only after it has asked for permission.
Amx request_amx() {
  constexpr uint32_t kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  if (!has_all(features().edx, kBf16 | kTile | kInt8)) return {};
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return {true, "", true};
  return {false,
          "the CPU has AMX but the system refused to enable its tile registers (the kernel is old, "
          "or a thread has a small alternate signal stack)",
          true};
#else
  return {false, "the CPU has AMX but only Linux is asked for it", true};
#endif
}

}  // namespace

const Amx& amx() {
  static const Amx state = request_amx();
  return state;
}

const X86Features& x86_features() {
  static const X86Features found = read_features();
  return found;
}

std::string x86_cpu_name() {
  constexpr uint32_t kFirst = 0x80000002, kLast = 0x80000004;
  if (cpuid(0x80000000).eax < kLast) return "";
  std::array<char, 3 * sizeof(Cpuid) + 1> name{};
  for (uint32_t leaf = kFirst; leaf <= kLast; ++leaf) {
    const Cpuid part = cpuid(leaf);
    std::memcpy(name.data() + (leaf - kFirst) * sizeof(part), &part, sizeof(part));
  }
  const std::string text = name.data();
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

}  // namespace specqd

#endif
