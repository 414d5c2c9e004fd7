// The speed at which this machine's memory can be read: what every reading is measured against.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace specqd {

// Seconds of each of `repeats` readings of `bytes` bytes of memory by all threads of the pool.
std::vector<double> measure_read_seconds(Pool& pool, const Kernels& kernels, size_t bytes,
                                         int repeats);

}  // namespace specqd
