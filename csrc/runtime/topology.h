// The NUMA nodes of this machine: the cores and the memory of each, and on which node pages are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace specqd {

struct NumaNode {
  int id = 0;
  std::set<int> cpus;                          // those that the caller may use
  int cores = 0;                               // of these CPUs; hyperthreads of a core count once
  int64_t memory_bytes = -1, free_bytes = -1;  // negative: unknown
};

// Usable nodes have CPUs and memory that this process may use. Every usable CPU belongs to one of
// them: the CPUs of a node without usable memory are added to the nearest usable node. If no node
// is usable, or there is no sysfs, all CPUs form one node.
struct Topology {
  std::vector<NumaNode> nodes;
  std::vector<int> unused;  // ids of online nodes that are not usable
};

// The CPUs and memory nodes that the affinity mask and the cgroup allow this process to use.
struct Allowed {
  std::set<int> cpus, memory_nodes;
};
Allowed allowed_here();

// Reads the topology from the files under `root`. It trusts none of them.
Topology read_topology(const Allowed& allowed, const std::string& root = "/sys/devices/system");

// The number of cores to which these CPUs belong.
int count_cores(const std::set<int>& cpus, const std::string& root = "/sys/devices/system");

// The first line of a file; empty if the file cannot be read.
std::string first_line(const std::string& path);

// The numbers in a list such as "0-3,8". Reading stops at the first part that is malformed.
std::set<int> parse_list(const std::string& text);

// Estimates from a sample of pages how many bytes of a range are on each node; -1 stands for pages
// that are not in memory. The result is empty if the system does not provide this.
std::map<int, size_t> nodes_of(const void* data, size_t bytes);

}  // namespace specqd
