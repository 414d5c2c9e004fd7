// The Python module. This file binds packed weights, rotary positions and the KV cache; it computes
// nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <variant>

#include "bindings/bindings.h"
#include "bindings/exclusive.h"
#include "bindings/fields.h"
#include "bindings/kernel_table.h"
#include "model/decoder.h"
#include "model/kv_cache.h"
#include "model/rope.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "runtime/topology.h"
#include "weights/error_feedback.h"
#include "weights/pack.h"

using namespace nanobind::literals;

namespace specqd {

template <>
const std::vector<std::string> kNamesOf<RopeKind>{"default", "linear",   "llama3",
                                                  "yarn",    "longrope", "proportional"};

void bind_layers(nb::module_& m);
void bind_decoder(nb::module_& m);
void bind_heads(nb::module_& m);
void bind_policy(nb::module_& m, nb::module_& testing);
void bind_kernels(nb::module_& m);
void bind_machine(nb::module_& m, nb::module_& testing);
void bind_levels(nb::module_& m);
void bind_blocks(nb::module_& m);
void bind_ngram(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_sequence(nb::module_& m);
void bind_testing(nb::module_& testing);

namespace {

using Products = nb::ndarray<const float, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A packed weight, or (source, row, column) of the first weight that cannot be packed.
using PackResult =
    std::variant<std::shared_ptr<PackedWeight>, std::tuple<int64_t, int64_t, int64_t>>;

// Calls make(error) without the GIL, and returns its weight or the error.
template <class Make>
PackResult pack_by(const Make& make) {
  PackError error;
  std::shared_ptr<PackedWeight> weight;
  {
    const nb::gil_scoped_release released;
    weight = make(&error);
  }
  if (weight == nullptr) return std::tuple(error.source, error.row, error.column);
  return weight;
}

// Packs BF16 sources [rows, columns]. The result is an error if a weight is not finite.
PackResult pack(Pool& pool, const std::string& isa, const std::vector<BitMatrix>& sources,
                bool interleaved, const std::string& format,
                const std::optional<Row<float>>& importance,
                const std::optional<Products>& products) {
  std::vector<RowSource> rows;
  for (const BitMatrix& source : sources) rows.push_back(row_source(source));
  const auto columns = static_cast<int64_t>(sources.at(0).shape(1));
  for (const BitMatrix& source : sources)
    if (static_cast<int64_t>(source.shape(1)) != columns)
      throw std::invalid_argument("matrices that are packed together need equal columns");
  PackedWeight::Options options{interleaved, kind_of<DraftFormat>(format), span_of(importance), {}};
  if (importance && static_cast<int64_t>(importance->size()) != columns)
    throw std::invalid_argument("importance must be [columns]");
  if (products) {
    if (static_cast<int64_t>(products->shape(0)) != columns ||
        static_cast<int64_t>(products->shape(1)) != kFeedbackInputs)
      throw std::invalid_argument("products must be [columns, group]");
    options.products = {products->data(), products->size()};
  }
  return pack_by([&](PackError* error) {
    return PackedWeight::pack(pool, kernels_or_throw(isa), rows, columns, options, error);
  });
}

using Bytes2 = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<2>, nb::c_contig>;

// Packs sources of codes [rows, blocks * 16] and scales [rows, blocks]. The column of an error is a
// block.
PackResult take_mxfp4(Pool& pool, const std::vector<std::pair<Bytes2, Bytes2>>& sources) {
  std::vector<Mxfp4Source> rows;
  for (const auto& [codes, scales] : sources)
    rows.push_back({codes.data(), scales.data(), static_cast<int64_t>(codes.shape(0))});
  const auto& [first_codes, first_scales] = sources.at(0);
  for (const auto& [codes, scales] : sources)
    if (codes.shape(0) != first_codes.shape(0) || scales.shape(0) != codes.shape(0) ||
        scales.shape(1) != first_scales.shape(1) || codes.shape(1) != scales.shape(1) * 16)
      throw std::invalid_argument("codes must be [rows, blocks * 16], scales [rows, blocks]");
  const auto blocks = static_cast<int64_t>(first_scales.shape(1));
  return pack_by(
      [&](PackError* error) { return PackedWeight::take_mxfp4(pool, rows, blocks, error); });
}

// The planes, as read-only arrays over the weight's own memory, which `self` keeps alive.
nb::dict planes(nb::handle self) {
  const PackedWeight::Planes planes = nb::cast<const PackedWeight&>(self).planes();
  nb::dict out;
  const auto put = [&](const char* name, const auto& plane) {
    using T = typename std::decay_t<decltype(plane)>::element_type;
    if (plane.data() != nullptr)
      out[name] = nb::ndarray<nb::numpy, T, nb::ndim<1>>(plane.data(), {plane.size()}, self);
  };
  put("codes", planes.codes);
  put("scales", planes.scales);
  put("scale_code", planes.scale_code);
  put("residuals", planes.residuals);
  put("patch_starts", planes.patch_starts);
  put("patches", planes.patches);
  put("plain", planes.plain);
  return out;
}

// Returns a weight over these arrays, which it keeps alive, or an error message.
std::variant<std::shared_ptr<PackedWeight>, std::string> map_planes(
    Pool& pool, const Row<uint8_t>& codes, const Row<uint8_t>& scales,
    const Row<uint32_t>& scale_code, const std::optional<Row<uint8_t>>& residuals,
    const std::optional<Row<uint32_t>>& patch_starts, const std::optional<Row<uint16_t>>& patches,
    const std::optional<Row<uint16_t>>& plain, const std::vector<int64_t>& source_rows,
    int64_t columns, bool interleaved) {
  auto* const kept =
      new std::tuple(codes, scales, scale_code, residuals, patch_starts, patches, plain);
  std::shared_ptr<const void> owner(kept, [](const auto* arrays) {
    const nb::gil_scoped_acquire held;
    delete arrays;
  });
  const PackedWeight::Planes planes{span_of(codes),     span_of(scales),       span_of(scale_code),
                                    span_of(residuals), span_of(patch_starts), span_of(patches),
                                    span_of(plain)};
  std::string problem;
  const nb::gil_scoped_release released;
  auto weight = PackedWeight::map(pool, planes, source_rows, columns, interleaved, std::move(owner),
                                  &problem);
  if (weight == nullptr) return problem;
  return weight;
}

std::map<std::string, size_t> plane_bytes(const PackedWeight& weight) {
  const PackedWeight::Bytes bytes = weight.bytes();
  return {{"codes", bytes.codes},
          {"scales", bytes.scales},
          {"residuals", bytes.residuals},
          {"patches", bytes.patches},
          {"plain", bytes.plain}};
}

std::map<std::string, std::map<int, size_t>> plane_nodes(const PackedWeight& weight) {
  std::map<std::string, std::map<int, size_t>> found;
  const auto add = [&](const char* name, const auto& plane) {
    if (plane.empty()) return;
    for (const auto& [node, bytes] : nodes_of(plane.data(), plane.size_bytes()))
      found[name][node] += bytes;
  };
  for (size_t copy = 0; copy < weight.copies(); ++copy) {
    const PackedWeight::Planes planes = weight.planes(static_cast<int>(copy));
    add("codes", planes.codes);
    add("scales", planes.scales);
    add("residuals", planes.residuals);
    add("patch_starts", planes.patch_starts);
    add("patches", planes.patches);
    add("plain", planes.plain);
  }
  return found;
}

void bind_weights(nb::module_& m) {
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_prop_ro("rows", &PackedWeight::rows)
      .def_prop_ro("columns", &PackedWeight::columns)
      .def_prop_ro("is_nested", &PackedWeight::is_nested)
      .def_prop_ro("is_mxfp4", &PackedWeight::is_mxfp4)
      .def_prop_ro("patch_count", &PackedWeight::patch_count)
      .def("plane_bytes", &plane_bytes)
      .def_prop_ro("copies", &PackedWeight::copies,
                   "The number of copies of all planes: one for each NUMA node that has its own.")
      .def(
          "plane_nodes", &plane_nodes,
          "Estimates from a sample of pages how many bytes of each plane, of all copies, are on\n"
          "each NUMA node; -1 stands for pages that are not in memory. A plane's dict is empty if\n"
          "the system does not provide this.")
      .def("planes", &planes, nb::sig("def planes(self) -> dict[str, NDArray[numpy.generic]]"),
           "Returns the planes by name, as flat, read-only views.");
  m.attr("FEEDBACK_INPUTS") = kFeedbackInputs;
  m.def("pack", &pack, "pool"_a, "isa"_a, "sources"_a, "interleaved"_a, "format"_a,
        "importance"_a.none() = nb::none(), "products"_a.none() = nb::none());
  m.def("take_mxfp4", &take_mxfp4, "pool"_a, "sources"_a);
  m.def("map_planes", &map_planes, "pool"_a, "codes"_a, "scales"_a, "scale_code"_a,
        "residuals"_a.none(), "patch_starts"_a.none(), "patches"_a.none(), "plain"_a.none(),
        nb::kw_only(), "source_rows"_a, "columns"_a, "interleaved"_a,
        "Makes a weight of planes that were packed before; returns it or an error message.");
  m.def("release_free_memory", &release_free_memory,
        "Returns free pages of the heap to the system.");
  m.def(
      "find_not_finite",
      [](Pool& pool, const BitMatrix& bits) -> std::optional<std::pair<int64_t, int64_t>> {
        const RowSource source = row_source(bits);
        const auto columns = static_cast<int64_t>(bits.shape(1));
        const nb::gil_scoped_release released;
        const PackError found = find_not_finite(pool, source, columns);
        if (found.source < 0) return std::nullopt;
        return std::pair(found.row, found.column);
      },
      "pool"_a, "bits"_a.noconvert(),
      "Returns (row, column) of the first BF16 number that is not finite, or None.");
}

void bind_rope(nb::module_& m) {
  bind_struct<RopeSpec>(
      m, "RopeSpec", "How positions rotate queries and keys.", required<&RopeSpec::kind>,
      required<&RopeSpec::dims>, required<&RopeSpec::theta>, required<&RopeSpec::factor>,
      required<&RopeSpec::original_max_positions>, required<&RopeSpec::low_freq_factor>,
      required<&RopeSpec::high_freq_factor>, required<&RopeSpec::beta_fast>,
      required<&RopeSpec::beta_slow>, required<&RopeSpec::attention_factor>,
      required<&RopeSpec::mscale>, required<&RopeSpec::mscale_all_dim>,
      required<&RopeSpec::truncate>, required<&RopeSpec::factors>,
      required<&RopeSpec::query_growth>, required<&RopeSpec::turning_pairs>);
}

void bind_cache(nb::module_& m) {
  m.attr("PAGE_POSITIONS") = kPagePositions;
  nb::class_<KvCache>(m, "KvCache")
      .def(
          "__init__",
          [](KvCache* self, Decoder& decoder, int64_t pages, int64_t states, int64_t slots) {
            new (self) KvCache(decoder.kv_shape(), pages, decoder.state_shape(), states, slots,
                               decoder.pool().nodes() == 1);
          },
          "decoder"_a, "pages"_a, "states"_a = 0, "slots"_a = 0)
      .def_prop_ro(
          "has_states", [](const KvCache& cache) { return cache.states().exist(); },
          "Whether any layer is recurrent.")
      .def_prop_ro(
          "total_states", [](const KvCache& cache) { return cache.states().capacity(); },
          "How many sequences can have states of recurrent layers at once.")
      .def_prop_ro("free_states", [](const KvCache& cache) { return cache.states().free(); })
      .def_prop_ro(
          "state_bytes", [](const KvCache& cache) { return cache.states().sequence_bytes(); },
          "The most bytes that the states of one sequence take.")
      .def_prop_ro(
          "slot_bytes", [](const KvCache& cache) { return cache.states().shape().slot_bytes(); },
          "Bytes of the states at one position.")
      .def_prop_ro(
          "total_slots", [](const KvCache& cache) { return cache.states().slots().most_cached(); },
          "How many states can be cached for later sequences.")
      .def_prop_ro("cached_slots",
                   [](const KvCache& cache) { return cache.states().slots().cached(); })
      .def_prop_ro(
          "used_slots", [](const KvCache& cache) { return cache.states().slots().in_use(); },
          "The number of states that sequences or the cache hold.")
      .def(
          "has_states_of",
          [](const KvCache& cache, int sequence) { return cache.states().has(sequence); },
          "sequence"_a)
      .def(
          "can_continue",
          [](const KvCache& cache, int sequence, int64_t position) {
            return cache.states().can_continue(sequence, position);
          },
          "sequence"_a, "position"_a, "Whether the states allow a forward to begin at `position`.")
      .def_prop_ro("total_pages", &KvCache::total_pages)
      .def_prop_ro("free_pages", &KvCache::free_pages)
      .def_prop_ro("page_bytes",
                   [](const KvCache& cache) { return cache.shape().page_words() * 2; })
      .def("create", exclusively<KvCache>(&KvCache::create))
      .def("release", exclusively<KvCache>(&KvCache::release), "sequence"_a)
      .def("fork", exclusively<KvCache>(&KvCache::fork), "sequence"_a, "length"_a)
      .def("attach_prefix", exclusively<KvCache>(&KvCache::attach_prefix), "sequence"_a, "tokens"_a,
           "salt"_a = 0)
      .def("publish", exclusively<KvCache>(&KvCache::publish), "sequence"_a, "tokens"_a,
           "salt"_a = 0)
      .def("release_behind", exclusively<KvCache>(&KvCache::release_behind), "sequence"_a,
           "position"_a)
      .def("has_page", &KvCache::has_page, "sequence"_a, "page"_a);
}

void require_page(const KvCache& cache, int sequence, int64_t page) {
  if (page < 0 || !cache.has_page(sequence, page))
    throw std::invalid_argument("the sequence has no such page");
}

void bind_page_bits(nb::module_& m) {
  auto cache = nb::borrow<nb::class_<KvCache>>(m.attr("KvCache"));
  cache
      .def(
          "page_bits",
          [](const KvCache& self, int sequence, int64_t page) {
            require_page(self, sequence, page);
            return owned_array(self.page_bits(sequence, page));
          },
          "sequence"_a, "page"_a, "Returns a copy of a page's words.")
      .def(
          "append_page",
          [](KvCache& self, int sequence, const BitVector& bits) {
            const Exclusive use(&self);
            if (static_cast<int64_t>(bits.size()) != self.shape().page_words())
              throw std::invalid_argument("bits must have exactly the words of one page");
            return self.append_page(sequence, {bits.data(), bits.size()});
          },
          "sequence"_a, "bits"_a,
          "Adds a page with these words to a sequence. Returns False if no page is free.")
      .def(
          "state_bits",
          [](const KvCache& self, int sequence, int64_t page) {
            require_page(self, sequence, page);
            std::optional<nb::ndarray<nb::numpy, uint8_t>> copy;
            if (const SlotPtr slot = self.cached_state(sequence, page))
              copy = owned_array(std::vector<uint8_t>(slot->bits().begin(), slot->bits().end()));
            return copy;
          },
          "sequence"_a, "page"_a,
          "Returns a copy of the states of recurrent layers that are cached for the end of a\n"
          "sequence's page; None if there are none.")
      .def(
          "restore_state",
          [](KvCache& self, int sequence, const Row<uint8_t>& bits) {
            const Exclusive use(&self);
            if (static_cast<int64_t>(bits.size()) != self.states().shape().slot_bytes())
              throw std::invalid_argument("bits must have exactly the bytes of one state");
            return self.restore_state(sequence, span_of(bits));
          },
          "sequence"_a, "bits"_a,
          "Lets a sequence without rows of its own continue after its pages from these states of\n"
          "recurrent layers. Returns False if no states are free.");
}

}  // namespace
}  // namespace specqd

NB_MODULE(_native, m) {
  m.doc() = "SpecQD's native core.";
  nanobind::module_ testing =
      m.def_submodule("testing", "Functions of the core that only tests and benchmarks call.");
  specqd::bind_machine(m, testing);
  specqd::bind_rope(m);
  specqd::bind_weights(m);
  specqd::bind_cache(m);
  specqd::bind_page_bits(m);
  specqd::bind_layers(m);
  specqd::bind_decoder(m);
  specqd::bind_sampling(m);
  specqd::bind_policy(m, testing);
  specqd::bind_sequence(m);
  specqd::bind_heads(m);
  specqd::bind_levels(m);
  specqd::bind_blocks(m);
  specqd::bind_kernels(m);
  specqd::bind_testing(testing);
  specqd::bind_ngram(testing);
}
