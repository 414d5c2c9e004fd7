#include "runtime/topology.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace specqd {
namespace {

constexpr int kMostIds = 1 << 16;  // of CPUs and nodes in a list, so that hostile lists stay short

// The bytes in the line "Node N NAME: ... kB" of a node's meminfo; -1 if there is no such line.
int64_t meminfo(const std::string& directory, const std::string& name) {
  std::ifstream file(directory + "/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string node, id, key;
    int64_t kilobytes = -1;
    if (words >> node >> id >> key >> kilobytes && key == name + ":" && kilobytes >= 0 &&
        kilobytes < std::numeric_limits<int64_t>::max() / 1024)
      return kilobytes * 1024;
  }
  return -1;
}

// The distances from a node to all online nodes, by id.
std::map<int, int> distances_of(const std::string& directory, const std::set<int>& online) {
  std::map<int, int> distances;
  std::istringstream words(first_line(directory + "/distance"));
  for (const int id : online)
    if (int distance; words >> distance) distances[id] = distance;
  return distances;
}

// The usable node with the least distance; the first one if the system gives no distances.
NumaNode& nearest(std::vector<NumaNode>& nodes, const std::map<int, int>& distances) {
  const auto from = [&](const NumaNode& node) {
    const auto found = distances.find(node.id);
    return found == distances.end() ? std::numeric_limits<int>::max() : found->second;
  };
  return *std::ranges::min_element(nodes, {}, from);
}

}  // namespace

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::set<int> parse_list(const std::string& text) {
  std::set<int> numbers;
  std::istringstream in(text);
  do {
    int first, last;
    if (!(in >> first) || first < 0 || first >= kMostIds) break;
    last = first;
    if (in.peek() == '-') {
      in.get();
      if (!(in >> last) || last < first || last >= kMostIds) break;
    }
    for (int i = first; i <= last; ++i) numbers.insert(numbers.end(), i);
  } while (in.get() == ',');
  return numbers;
}

int count_cores(const std::set<int>& cpus, const std::string& root) {
  std::set<std::string> cores;  // a core's hyperthreads share its memory pipes
  for (const int cpu : cpus) {
    const std::string name = std::to_string(cpu);
    const std::string list =
        first_line(root + "/cpu/cpu" + name + "/topology/thread_siblings_list");
    cores.insert(list.empty() ? name : list);
  }
  return static_cast<int>(cores.size());
}

Allowed allowed_here() {
  Allowed allowed;
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) allowed.cpus.insert(cpu);
#endif
  if (allowed.cpus.empty())
    for (unsigned cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); ++cpu)
      allowed.cpus.insert(static_cast<int>(cpu));
  std::ifstream status("/proc/self/status");
  const std::string key = "Mems_allowed_list:";
  for (std::string line; std::getline(status, line);)
    if (line.rfind(key, 0) == 0) allowed.memory_nodes = parse_list(line.substr(key.size()));
  return allowed;
}

Topology read_topology(const Allowed& allowed, const std::string& root) {
  Topology topology;
  const std::set<int> online = parse_list(first_line(root + "/node/online"));
  std::set<int> left = allowed.cpus;
  const auto directory_of = [&](int id) { return root + "/node/node" + std::to_string(id); };
  std::vector<std::pair<int, std::set<int>>> without_memory;  // CPUs by node
  for (const int id : online) {
    NumaNode node;
    node.id = id;
    for (const int cpu : parse_list(first_line(directory_of(id) + "/cpulist")))
      if (left.erase(cpu) > 0) node.cpus.insert(cpu);
    node.memory_bytes = meminfo(directory_of(id), "MemTotal");
    node.free_bytes = meminfo(directory_of(id), "MemFree");
    const bool has_memory = allowed.memory_nodes.contains(id) && node.memory_bytes > 0;
    if (!node.cpus.empty() && has_memory) {
      topology.nodes.push_back(std::move(node));
      continue;
    }
    topology.unused.push_back(id);
    if (!node.cpus.empty()) without_memory.emplace_back(id, std::move(node.cpus));
  }
  if (topology.nodes.empty()) {
    topology = {};
    topology.nodes.resize(1);
    topology.nodes.front().cpus = allowed.cpus;
  } else {
    topology.nodes.front().cpus.merge(left);  // CPUs that no node lists
    for (auto& [id, cpus] : without_memory)
      nearest(topology.nodes, distances_of(directory_of(id), online)).cpus.merge(cpus);
  }
  for (NumaNode& node : topology.nodes) node.cores = count_cores(node.cpus, root);
  return topology;
}

std::map<int, size_t> nodes_of(const void* data, size_t bytes) {
  std::map<int, size_t> found;
#if defined(__linux__)
  constexpr size_t kMostSamples = 256;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const size_t pages = (reinterpret_cast<uintptr_t>(data) + bytes - begin + page - 1) / page;
  const size_t samples = std::min(pages, kMostSamples);
  std::vector<void*> addresses;
  for (size_t i = 0; i < samples; ++i)
    addresses.push_back(reinterpret_cast<void*>(begin + pages * i / samples * page));
  std::vector<int> nodes(samples, -1);
  if (samples == 0 ||
      syscall(SYS_move_pages, 0, samples, addresses.data(), nullptr, nodes.data(), 0) != 0)
    return found;
  for (size_t i = 0; i < samples; ++i)
    found[std::max(nodes[i], -1)] += bytes * (i + 1) / samples - bytes * i / samples;
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
  return found;
}

}  // namespace specqd
