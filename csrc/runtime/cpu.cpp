#include "runtime/cpu.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "runtime/arm_cpu.h"
#include "runtime/system.h"
#include "runtime/topology.h"
#include "runtime/x86_cpu.h"

namespace specqd {
namespace {

// The directories of this process's cgroups, of version 2 and of the version 1 controller. In each
// hierarchy the innermost comes first.
std::vector<std::string> cgroup_directories(const std::string& controller) {
  std::vector<std::string> directories;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string root;
    if (controllers.empty())
      root = "/sys/fs/cgroup";
    else if (controllers.find(controller) != std::string::npos)
      root = "/sys/fs/cgroup/" + controller;
    else
      continue;
    for (std::string path = line.substr(second + 1);;) {
      directories.push_back(root + (path == "/" ? "" : path));
      const size_t slash = path.rfind('/');
      if (path.empty() || path == "/" || slash == std::string::npos) break;
      path.resize(slash);
    }
    directories.push_back(root);
  }
  return directories;
}

double cgroup_cpu_quota() {
  double quota = std::numeric_limits<double>::infinity();
  for (const std::string& directory : cgroup_directories("cpu")) {
    double limit = 0, period = 0;
    std::istringstream v2(first_line(directory + "/cpu.max"));
    if (v2 >> limit >> period && period > 0) quota = std::min(quota, limit / period);
    std::istringstream v1(first_line(directory + "/cpu.cfs_quota_us") + " " +
                          first_line(directory + "/cpu.cfs_period_us"));
    if (v1 >> limit >> period && limit > 0 && period > 0) quota = std::min(quota, limit / period);
  }
  return quota;
}

bool parse_bytes(const std::string& text, int64_t* bytes) {
  std::istringstream in(text);
  return static_cast<bool>(in >> *bytes);
}

// The value of `name` in a cgroup's memory.stat; 0 if there is none.
int64_t memory_stat(const std::string& directory, const std::string& name) {
  std::ifstream file(directory + "/memory.stat");
  int64_t bytes = 0;
  for (std::string key; file >> key >> bytes;)
    if (key == name) return bytes;
  return 0;
}

int64_t cgroup_memory_left() {
  int64_t left = std::numeric_limits<int64_t>::max();
  for (const std::string& directory : cgroup_directories("memory"))
    left = std::min(left, memory_left_in(directory));
  return left;
}

// The kernels that run on this machine, fastest first.
std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> all;
#if defined(__x86_64__)
  const X86Features& cpu = x86_features();
  if (cpu.avx512 && amx().usable) all.push_back(amx_kernels());
  if (cpu.avx512) all.push_back(avx512_kernels());
  // On CPUs with AMX, vdpbf16ps is slow.
  if (cpu.avx512_bf16)
    all.insert(amx().in_cpu ? all.end() : all.begin(), avx512bf16_kernels(cpu.half_vectors));
  if (cpu.avx_vnni) all.push_back(avx2vnni_kernels());
  if (cpu.avx2) all.push_back(avx2_kernels());
#elif defined(__aarch64__)
  if (has_dot_products()) all.push_back(neondot_kernels());
  all.push_back(neon_kernels());
#endif
  all.push_back(portable_kernels());
  return all;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
  return names;
}

const Kernels* kernels_named(const std::string& name) {
#if defined(__x86_64__)
  const X86Features& cpu = x86_features();
  if (name == "amx_emulated") return cpu.avx512 ? amx_emulated_kernels() : nullptr;
  if (name == "avx512bf16_other")
    return cpu.avx512_bf16 ? avx512bf16_kernels(!cpu.half_vectors) : nullptr;
#endif
  for (const Kernels* kernels : available_kernels())
    if (kernels->name == name) return kernels;
  return nullptr;
}

std::string amx_refusal() {
#if defined(__x86_64__)
  return amx().refusal;
#else
  return "";
#endif
}

int usable_threads() {
  int cores = usable_cores();
  const double quota = cgroup_cpu_quota();
  if (quota < cores) cores = static_cast<int>(std::ceil(quota));
  return std::max(cores, 1);
}

int64_t memory_left_in(const std::string& directory) {
  int64_t left = std::numeric_limits<int64_t>::max();
  const auto look = [&](const char* limit_file, const char* usage_file, const char* cache) {
    int64_t limit, used;
    if (!parse_bytes(first_line(directory + limit_file), &limit) ||
        !parse_bytes(first_line(directory + usage_file), &used))
      return;
    used -= std::min(memory_stat(directory, cache), used);
    left = std::min(left, std::max<int64_t>(limit - used, 0));
  };
  look("/memory.max", "/memory.current", "inactive_file");
  look("/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file");
  return left;
}

int64_t usable_memory() {
  const int64_t available = available_memory();
  const int64_t left = cgroup_memory_left();
  return available < 0 ? -1 : std::min(available, left);
}

std::string cpu_model() {
#if defined(__aarch64__) && !defined(__APPLE__)
  if (const uint32_t midr = main_id_register(); midr != 0) return arm_core_name(midr);
#endif
  std::string name = system_cpu_name();
#if defined(__x86_64__)
  if (name.empty()) name = x86_cpu_name();
#endif
  return name.empty() ? "unknown CPU" : name;
}

}  // namespace specqd
