// Measures how fast this machine reads memory and multiplies: the limits of decoding and of
// prefill.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/pool.h"

namespace specqd {

// Seconds of each of `repeats` reads of `bytes` bytes of memory by all threads of the pool.
std::vector<double> measure_read_seconds(Pool& pool, const Kernels& kernels, size_t bytes,
                                         int repeats);
// Seconds of each of `repeats` runs in which every thread of the pool computes kPeakProducts exact
// products.
constexpr int64_t kPeakRounds = 4096;
constexpr int64_t kPeakProducts = kPeakRounds * kPanel * kTileWeights;
std::vector<double> measure_product_seconds(Pool& pool, const Kernels& kernels, int repeats);

}  // namespace specqd
