// What macOS says about this machine. Declared everywhere, defined only there.
#pragma once

#include <cstdint>
#include <string>

namespace specqd {

// A system value by name, such as "hw.physicalcpu"; -1 or an empty text if there is none.
int64_t sysctl_number(const char* name);
std::string sysctl_text(const char* name);

// The number of fast cores; of all cores if they are alike. Efficiency cores do not count: a part
// of a forward would wait for them.
int performance_cores();

// Bytes of free memory, and of pages that the system can take back without writing them to disk;
// negative if unknown.
int64_t available_memory();

}  // namespace specqd
