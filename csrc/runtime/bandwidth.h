// Measures how fast this machine reads memory and multiplies. These speeds are the limits of
// decoding and of prefill.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace specqd {

// Memory that all threads of a pool read, an equal part each. The pool must outlive it.
class PlainReads {
 public:
  PlainReads(Pool& pool, const Kernels& kernels, size_t bytes);
  double read_seconds();  // reads all bytes once

 private:
  Pool& pool_;
  const Kernels& kernels_;
  size_t share_;
  Memory memory_;
};

// Returns the seconds of each of `repeats` runs in which every thread of the pool computes
// kPeakProducts multiply-adds of an exact product.
constexpr int64_t kPeakRounds = 4096;
constexpr int64_t kPeakProducts = kPeakRounds * kPanel * kTileWeights;
std::vector<double> measure_product_seconds(Pool& pool, const Kernels& kernels, int repeats);

}  // namespace specqd
