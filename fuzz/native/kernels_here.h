// The kernels of all instruction sets that run on this machine, the portable ones last.
#pragma once

#include <vector>

#include "runtime/cpu.h"

namespace specqd {

inline const std::vector<const Kernels*>& kernels_here() {
  static const std::vector<const Kernels*> all = [] {
    std::vector<const Kernels*> found;
    for (const std::string& name : available_isas()) found.push_back(kernels_named(name));
    return found;
  }();
  return all;
}

}  // namespace specqd
