// What the system says about this machine. system_linux.cpp, system_macos.cpp and
// system_windows.cpp define these functions, each for its own system; the first also for others.
#pragma once

#include <cstdint>
#include <string>

namespace specqd {

// The number of cores for threads. On Linux and Windows the physical cores that this process may
// use; on macOS, where threads cannot be bound, the fast cores, or all if they are alike: a part of
// a forward would wait for an efficiency core.
int usable_cores();

// Bytes of free memory, and of pages that the system can take back without writing them to disk;
// negative if unknown.
int64_t available_memory();

// The name of the CPU; empty if the system does not give it.
std::string system_cpu_name();

// The CPU on which the calling thread runs; negative if unknown.
int current_cpu();

#if defined(__APPLE__)
// A system value by name, such as "hw.physicalcpu"; -1 if there is none.
int64_t sysctl_number(const char* name);
#endif

}  // namespace specqd
