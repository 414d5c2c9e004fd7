// What this machine, and this process on it, may use: instruction sets, cores, memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace specqd {

// Names of the instruction sets that run here, fastest first; the last is "portable".
std::vector<std::string> available_isas();

// The kernels of that name, or null if they do not run here.
const Kernels* kernels_named(const std::string& name);

// Why AMX that the CPU has is not available; empty if it is, or if the CPU has none.
std::string amx_refusal();

// Physical cores in this thread's affinity mask, within the cgroup's CPU quota; at least 1.
int usable_threads();

// Bytes that can be allocated without swapping: what the system has available, within the limits
// of every cgroup above this process. Negative if unknown.
int64_t usable_memory();

std::string cpu_model();

}  // namespace specqd
