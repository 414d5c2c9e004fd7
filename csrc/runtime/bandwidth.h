// Measures how fast this machine reads memory, which is the limit of decoding.
#pragma once

#include <cstddef>

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

}  // namespace specqd
