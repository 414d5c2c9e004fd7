#include "runtime/system.h"

#if defined(__APPLE__)

#include <mach/mach.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <algorithm>

namespace specqd {

int64_t sysctl_number(const char* name) {
  int64_t value = 0;  // the system writes 4 or 8 bytes, in little-endian order
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 ? value : -1;
}

std::string system_cpu_name() {
  char text[256] = {};
  size_t size = sizeof(text) - 1;
  return sysctlbyname("machdep.cpu.brand_string", text, &size, nullptr, 0) == 0 ? text : "";
}

int usable_cores() {
  const int64_t fast = sysctl_number("hw.perflevel0.physicalcpu");
  return static_cast<int>(std::max(fast > 0 ? fast : sysctl_number("hw.physicalcpu"), int64_t{1}));
}

int64_t available_memory() {
  vm_statistics64_data_t pages;
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const mach_port_t host = mach_host_self();
  const bool is_known =
      host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &count) ==
      KERN_SUCCESS;
  mach_port_deallocate(mach_task_self(), host);
  if (!is_known) return -1;
  // Pages of files that have been read ahead count as free, too. Inactive pages of programs are
  // compressed or swapped first, so only those of files are available at once.
  const int64_t available = int64_t{pages.free_count} + pages.purgeable_count +
                            std::min(pages.inactive_count, pages.external_page_count);
  return available * sysconf(_SC_PAGESIZE);
}

int current_cpu() { return -1; }

}  // namespace specqd

#endif
