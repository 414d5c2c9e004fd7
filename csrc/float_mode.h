// Subnormal numbers are zero in every computation of the core, as they are to AMX.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specqd {

// Flushes subnormals in this thread while it lives; the caller's mode comes back afterwards.
class FlushSubnormals {
 public:
  FlushSubnormals() : saved_(read()) { write(saved_ | kFlush); }
  ~FlushSubnormals() { write(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8040;  // MXCSR: FTZ and DAZ
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1u << 24;  // FPCR: FZ
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif
  uint64_t saved_;
};

}  // namespace specqd
