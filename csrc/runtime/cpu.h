// The instruction sets, cores and memory that this process may use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace specqd {

// Names of the instruction sets that run on this machine, fastest first; the last is "portable".
std::vector<std::string> available_isas();

// The kernels of that name, or null if they do not run on this machine.
const Kernels* kernels_named(const std::string& name);

// Why the system refuses the CPU's AMX; empty if AMX is available, or if the CPU has none.
std::string amx_refusal();

// Physical cores in this thread's affinity mask, within the cgroup's CPU quota; at least 1.
int usable_threads();

// Bytes that can be allocated without swapping: the system's available memory, within the limits of
// every cgroup above this process. Negative if unknown.
int64_t usable_memory();
// The bytes that the limit of a cgroup's directory leaves; the largest number without a limit.
// Cached pages of files that nobody used for long are free: the system drops them when needed.
int64_t memory_left_in(const std::string& directory);

std::string cpu_model();

}  // namespace specqd
