// The core rounds to nearest, never traps, and treats subnormal numbers as zero, because AMX has no
// other mode. The caller's own floating-point mode has no influence.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specqd {

// Sets the core's mode in this thread; the destructor restores the caller's mode.
class FlushSubnormals {
 public:
  FlushSubnormals() : saved_(read()) { write(kMode); }
  ~FlushSubnormals() { write(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kMode = 0x9fc0;  // MXCSR: FTZ, DAZ, all exceptions masked
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kMode = 1u << 24;  // FPCR: FZ
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kMode = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif
  uint64_t saved_;
};

}  // namespace specqd
