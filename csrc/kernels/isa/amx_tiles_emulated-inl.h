// Emulates AMX's tile registers and their arithmetic, so that the AMX products can be tested on
// machines without AMX. Misuse that would fault in hardware also ends the process here.
#pragma once

#include "kernels/isa/amx_tiles-inl.h"
#include "kernels/isa/lanes-inl.h"

namespace specqd {
namespace {

struct TileFile {
  TileShapes shapes;
  alignas(64) uint8_t data[8][kTileRows][64];
};
// The tiles are not configured while all shapes have no rows.
thread_local TileFile tile_file;

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

struct EmulatedTiles {
  static void configure(const TileShapes& shapes) {
    require(shapes.palette == 1);
    for (int t = 0; t < 8; ++t)
      require(shapes.rows[t] <= kTileRows && shapes.row_bytes[t] <= 64 &&
              (shapes.rows[t] == 0) == (shapes.row_bytes[t] == 0));
    tile_file.shapes = shapes;
    std::memset(tile_file.data, 0, sizeof(tile_file.data));
  }
  static void release() {
    tile_file.shapes = TileShapes{};
    std::memset(tile_file.data, 0xff, sizeof(tile_file.data));
  }

  template <int T>
  static void zero() {
    require(tile_file.shapes.rows[T] > 0);
    std::memset(tile_file.data[T], 0, sizeof(tile_file.data[T]));
  }

  template <int T>
  static void load(const void* from, size_t stride) {
    zero<T>();
    for (int r = 0; r < tile_file.shapes.rows[T]; ++r)
      std::memcpy(tile_file.data[T][r], static_cast<const char*>(from) + r * stride,
                  tile_file.shapes.row_bytes[T]);
  }

  template <int T>
  static void store(void* to, size_t stride) {
    require(tile_file.shapes.rows[T] > 0);
    for (int r = 0; r < tile_file.shapes.rows[T]; ++r)
      std::memcpy(static_cast<char*>(to) + r * stride, tile_file.data[T][r],
                  tile_file.shapes.row_bytes[T]);
  }

  // Rounds to nearest even and treats subnormals as zero, whatever the caller's mode, as AMX does.
  template <int C, int A, int B>
  static void dot_bf16() {
    require_product<C, A, B>();
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    for (int m = 0; m < tile_file.shapes.rows[C]; ++m) {
      F16 even{}, odd{};
      for (int k = 0; k < tile_file.shapes.rows[B]; ++k) {
        const auto x = load_as<uint32_t>(tile_file.data[A][m] + 4 * k);
        const auto w = load_as<U16>(tile_file.data[B][k]);
        even = fma(bits_as<F16>(w << 16), splat(bits_as<float>(x << 16)), even);
        odd = fma(bits_as<F16>(w & 0xffff0000u), splat(bits_as<float>(x & 0xffff0000u)), odd);
      }
      uint8_t* const sum = tile_file.data[C][m];
      store_as(sum, load_as<F16>(sum) + (even + odd));
    }
    _mm_setcsr(mode);
  }

  template <int C, int A, int B>
  static void dot_int8() {
    require_product<C, A, B>();
    for (int m = 0; m < tile_file.shapes.rows[C]; ++m) {
      uint8_t* const at = tile_file.data[C][m];
      I16 sum = load_as<I16>(at);
      for (int k = 0; k < 4 * tile_file.shapes.rows[B]; ++k) {
        const I16 weights = load_as<I16>(tile_file.data[B][k / 4]) << (24 - k % 4 * 8) >> 24;
        sum += weights * static_cast<int8_t>(tile_file.data[A][m][k]);
      }
      store_as(at, sum);
    }
  }

 private:
  template <int C, int A, int B>
  static void require_product() {
    const TileShapes& s = tile_file.shapes;
    require(C != A && C != B && A != B && s.rows[C] > 0 && s.rows[C] == s.rows[A] &&
            s.row_bytes[A] == 4 * s.rows[B] && s.row_bytes[C] == s.row_bytes[B]);
  }
};

}  // namespace
}  // namespace specqd
