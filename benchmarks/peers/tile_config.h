// GCC 12 tells its optimizer that ldtilecfg reads 8 bytes of the configuration instead of 64, so it
// drops the others: llama.cpp built with it for AMX ends with a general protection fault.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) \
  __asm__ volatile("ldtilecfg\t%0" ::"m"(*reinterpret_cast<const char (*)[64]>(config)))
#endif
