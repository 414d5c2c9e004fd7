// The instruction sets, cores and memory that this process may use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace specqd {

// Names of the instruction sets that run on this machine, fastest first; the last is "portable".
std::vector<std::string> available_isas();

// The kernels of an instruction set, or null if they do not run on this machine. The names are
// those of available_isas(), and two for tests: "amx_emulated", which needs AVX-512, and
// "avx512bf16_other", the AVX-512 BF16 kernels for the other width of vector units.
const Kernels* kernels_named(const std::string& name);

// Why the system does not let this process use the CPU's AMX; empty if it does, or if the CPU has
// no AMX.
std::string amx_refusal();

// The number of physical cores in this thread's affinity mask, but no more than the CPU quota of
// the cgroup, rounded up; at least 1.
int usable_threads();

// Bytes that can be allocated without swapping: the system's available memory, within the limits of
// this process's cgroup and of those above it. Negative if unknown.
int64_t usable_memory();
// Bytes that can still be allocated under the limit of a cgroup, given its directory; the largest
// int64_t if it has no limit. Inactive pages of cached files count as free, because the system
// drops them when it needs memory.
int64_t memory_left_in(const std::string& directory);

std::string cpu_model();

}  // namespace specqd
