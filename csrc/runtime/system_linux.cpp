#include "runtime/system.h"

#if !defined(__APPLE__) && !defined(_WIN32)

#include <fstream>

#include "runtime/topology.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace specqd {

int usable_cores() { return count_cores(allowed_here().cpus); }

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("MemAvailable:", 0) == 0) return std::stoll(line.substr(13)) * 1024;
  return -1;
}

std::string system_cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "";
}

int current_cpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

}  // namespace specqd

#endif
