// The NUMA nodes of this machine: which cores and how much memory each has, and where pages lie.
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
  std::set<int> cpus;                          // that the caller may use
  int cores = 0;                               // of these CPUs: hyperthreads of one core count once
  int64_t memory_bytes = -1, free_bytes = -1;  // negative: unknown
};

// Usable nodes have CPUs and memory that this process may use. All usable CPUs belong to one: those
// of a node without usable memory to the nearest. Without any usable node (or without sysfs), all
// CPUs are one node.
struct Topology {
  std::vector<NumaNode> nodes;
  std::vector<int> unused;  // ids of online nodes that are not usable
};

// What the affinity mask and the cgroup allow.
struct Allowed {
  std::set<int> cpus, memory_nodes;
};
Allowed allowed_here();

// Reads `root`, by default /sys/devices/system. Nothing in it is trusted.
Topology read_topology(const Allowed& allowed, const std::string& root = "/sys/devices/system");

// The cores of some CPUs.
int count_cores(const std::set<int>& cpus, const std::string& root = "/sys/devices/system");

// The first line of a file; empty if there is none.
std::string first_line(const std::string& path);

// The numbers in a list such as "0-3,8"; ends at the first part that is none.
std::set<int> parse_list(const std::string& text);

// Bytes of this range by node, from a sample of its pages; -1: not in memory. Empty if the system
// does not tell.
std::map<int, size_t> nodes_of(const void* data, size_t bytes);

}  // namespace specqd
