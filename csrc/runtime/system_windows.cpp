#include "runtime/system.h"

#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace specqd {
namespace {

// Whether the process may use a core. Its mask is zero if it may use several groups of CPUs.
bool may_use(const PROCESSOR_RELATIONSHIP& core, KAFFINITY mask) {
  if (mask == 0) return true;
  for (WORD i = 0; i < core.GroupCount; ++i)
    if ((core.GroupMask[i].Mask & mask) != 0) return true;
  return false;
}

}  // namespace

int usable_cores() {
  KAFFINITY mask = 0, all = 0;
  GetProcessAffinityMask(GetCurrentProcess(), &mask, &all);
  DWORD bytes = 0;
  GetLogicalProcessorInformationEx(RelationProcessorCore, nullptr, &bytes);
  std::vector<uint64_t> entries((bytes + 7) / 8);
  auto* const begin = reinterpret_cast<uint8_t*>(entries.data());
  using Entry = SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX;
  if (bytes == 0 || GetLogicalProcessorInformationEx(RelationProcessorCore,
                                                     reinterpret_cast<Entry*>(begin), &bytes) == 0)
    return static_cast<int>(std::thread::hardware_concurrency());
  int cores = 0;
  for (DWORD at = 0; at < bytes;) {
    const auto* const entry = reinterpret_cast<const Entry*>(begin + at);
    cores += may_use(entry->Processor, mask);
    at += entry->Size;
  }
  return cores;
}

int64_t available_memory() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof(status);
  if (GlobalMemoryStatusEx(&status) == 0) return -1;
  // The second is what the system still promises to all programs: memory and paging files.
  return static_cast<int64_t>(std::min(status.ullAvailPhys, status.ullAvailPageFile));
}

std::string system_cpu_name() { return ""; }

int current_cpu() { return static_cast<int>(GetCurrentProcessorNumber()); }

}  // namespace specqd

#endif
