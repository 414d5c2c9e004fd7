// Binds the machine: its cores and NUMA nodes, pools of threads, and the speed of memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/kernel_table.h"
#include "runtime/arm_cpu.h"
#include "runtime/bandwidth.h"
#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "runtime/topology.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

void bind_topology(nb::module_& m, nb::module_& testing) {
  nb::class_<NumaNode>(m, "NumaNode", "CPUs and memory that this process may use.")
      .def_ro("id", &NumaNode::id)
      .def_ro("cpus", &NumaNode::cpus)
      .def_ro("cores", &NumaNode::cores, "Hyperthreads of one core count once.")
      .def_ro("memory_bytes", &NumaNode::memory_bytes, "Negative if unknown.")
      .def_ro("free_bytes", &NumaNode::free_bytes, "Negative if unknown.");
  nb::class_<Topology>(m, "Topology", "The NUMA nodes of this machine; at least one is usable.")
      .def_ro("nodes", &Topology::nodes)
      .def_ro("unused", &Topology::unused, "Ids of nodes without CPUs or memory for this process.");
  m.def(
      "topology", [] { return read_topology(allowed_here()); },
      "Reads the NUMA nodes that the affinity mask and the cgroup allow.");
  m.def("may_put_on", &may_put_on, "node"_a,
        "Returns whether the system lets this process put pages on a NUMA node.");
  testing.def(
      "mappings_of_blocks",
      [](int blocks, size_t bytes, int parts) {
        std::vector<Memory> all;
        for (int i = 0; i < blocks; ++i) {
          Memory& block = all.emplace_back(bytes);
          for (size_t part = 0; part < static_cast<size_t>(parts); ++part)
            block.put_on(static_cast<int>(part % 2), bytes * part / static_cast<size_t>(parts),
                         bytes * (part + 1) / static_cast<size_t>(parts));
        }
        std::ifstream maps("/proc/self/maps");
        return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
      },
      "blocks"_a, "bytes"_a, "parts"_a,
      "Returns the number of mappings of this process while it has blocks of memory, each of\n"
      "`parts` parts that alternate between nodes 0 and 1.");
  testing.def(
      "topology",
      [](const std::string& root, const std::set<int>& cpus, const std::set<int>& memory_nodes) {
        return read_topology({cpus, memory_nodes}, root);
      },
      "root"_a, "cpus"_a, "memory_nodes"_a,
      "Reads a topology from `root` instead of /sys/devices/system.");
  testing.def("arm_core_name", &arm_core_name, "midr"_a,
              "Returns the name of the ARM core with this main ID register.");
  testing.def(
      "nodes_of",
      [](const nb::ndarray<const uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig>& bytes) {
        return nodes_of(bytes.data(), bytes.size());
      },
      "bytes"_a,
      "Returns the bytes on each NUMA node, from a sample of pages; -1 stands for pages that are\n"
      "not in memory.");
  testing.def(
      "tally",
      [](Pool& pool) {
        auto bytes = pool.tally();
        pool.reset_tally();
        return bytes;
      },
      "pool"_a,
      "Returns the bytes of panels read since the last call, [threads' node][panels' node].");
}

void bind_pool(nb::module_& m) {
  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int>(), "threads"_a)
      .def(
          "__init__",
          [](Pool* self, const std::vector<std::tuple<int, int, std::set<int>>>& nodes,
             bool replicates, bool copies_mapped) {
            Placement placement{{}, replicates, copies_mapped};
            for (const auto& [node, threads, cpus] : nodes)
              placement.nodes.push_back({node, threads, cpus});
            new (self) Pool(std::move(placement));
          },
          "nodes"_a, nb::kw_only(), "replicates"_a = false, "copies_mapped"_a = false,
          "Starts threads on NUMA nodes: (id of the node, number of threads, CPUs that they are\n"
          "bound to). Without CPUs, the threads are not bound.")
      .def_prop_ro("threads", &Pool::threads)
      .def_prop_ro(
          "nodes",
          [](const Pool& pool) {
            std::vector<std::pair<int, int>> nodes;
            for (const NodeThreads& each : pool.placement().nodes)
              nodes.emplace_back(each.node, each.threads);
            return nodes;
          },
          "The id and number of threads of each NUMA node.")
      .def_prop_ro("replicates", [](const Pool& pool) { return pool.placement().replicates; })
      .def_prop_ro("copies_mapped", [](const Pool& pool) { return pool.placement().copies_mapped; })
      .def_prop_ro("unbound", &Pool::unbound,
                   "Threads that the system did not bind to their node's CPUs.")
      .def("start_trace", &Pool::start_trace, nb::call_guard<nb::gil_scoped_release>(),
           "Starts to record the stages of all forwards.")
      .def(
          "stop_trace",
          [](Pool& pool) {
            std::vector<Trace::Span> spans;
            {
              const nb::gil_scoped_release released;
              spans = pool.stop_trace();
            }
            std::vector<std::tuple<int, std::string, int64_t, int64_t>> out;
            for (const Trace::Span& span : spans)
              out.emplace_back(span.thread, span.stage, span.begin, span.end);
            return out;
          },
          "Returns (thread, stage, begin, end) of each recorded stage, in nanoseconds. The stage\n"
          "\"wait\" is a wait at a barrier.");
}

}  // namespace

void bind_machine(nb::module_& m, nb::module_& testing) {
  m.def("available_isas", &available_isas);
  m.def("amx_refusal", &amx_refusal);
  m.def("usable_threads", &usable_threads);
  m.def("usable_memory", &usable_memory);
  m.def("cpu_model", &cpu_model);
  bind_topology(m, testing);
  bind_pool(m);
  nb::class_<PlainReads>(m, "PlainReads", "Memory that all threads of a pool read.")
      .def(
          "__init__",
          [](PlainReads* self, Pool& pool, const std::string& isa, size_t bytes) {
            const nb::gil_scoped_release released;
            new (self) PlainReads(pool, kernels_or_throw(isa), bytes);
          },
          "pool"_a, "isa"_a, "bytes"_a, nb::keep_alive<1, 2>())
      .def("read_seconds", &PlainReads::read_seconds, nb::call_guard<nb::gil_scoped_release>(),
           "Reads all bytes once; returns the seconds.");
}

}  // namespace specqd
