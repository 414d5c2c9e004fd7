// Binds the parts of an instruction set's kernels that only tests call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/kernel_table.h"
#include "kernels/float_mode.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

template <class T>
using Out = nb::ndarray<nb::numpy, T>;

template <class T>
Out<T> new_array(std::initializer_list<size_t> shape) {
  size_t count = 1;
  for (const size_t n : shape) count *= n;
  T* data = new T[count];
  std::memset(static_cast<void*>(data), 0xff, count * sizeof(T));  // NaN if T is float
  nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  return Out<T>(data, shape, owner);
}

template <class T>
Out<T> copy_array(const T* from, std::initializer_list<size_t> shape) {
  Out<T> out = new_array<T>(shape);
  std::memcpy(out.data(), from, out.nbytes());
  return out;
}

// A table of kernels whose every function Python can call.
struct TestedTable : KernelTable {};

Out<uint16_t> unpack(TestedTable table, const Packed& packed) {
  auto out = new_array<uint16_t>(
      {size_t(packed.view.panels), size_t(packed.view.tiles), size_t(kTileWeights)});
  for (int64_t i = 0; i < packed.view.panels * packed.view.tiles; ++i)
    table.at->decode_tile(packed.view, i, out.data() + i * kTileWeights);
  return out;
}

Out<float> product(TestedTable table, const std::string& precision, const Packed& packed,
                   In<float, 2> x, int64_t first, int64_t last) {
  const FlushSubnormals flush;
  const Kernels& kernels = *table.at;
  if (last < 0) last = packed.view.panels;
  if (first < 0 || first > last || last > packed.view.panels)
    throw std::invalid_argument("the panels are out of range");
  const Precision kind = kind_of<Precision>(precision);
  const Prepared rows = prepare(kernels, kind, x, packed.view.tiles);
  const size_t columns = static_cast<size_t>(last - first) * kPanel;
  auto out = new_array<float>({x.shape(0), columns});
  (kind == Precision::kExact ? kernels.exact_product : kernels.draft_product)(
      packed.view, first, last, rows.view(), out.data(), static_cast<int64_t>(columns));
  return out;
}

// Pages of keys or values, [pages, kPagePositions * width].
class TestedPages {
 public:
  TestedPages(In<uint16_t, 2> words, int64_t begin, int64_t end) {
    for (size_t i = 0; i < words.shape(0); ++i) pages_.push_back(words.data() + i * words.shape(1));
    view_ = {pages_.data(), begin, end, static_cast<int64_t>(words.shape(1)) / kPagePositions};
  }
  const KvPages& view() const { return view_; }

 private:
  std::vector<const uint16_t*> pages_;
  KvPages view_;
};

void bind_products(nb::class_<TestedTable, KernelTable>& table) {
  table.def("unpack", &unpack)
      .def("prepare",
           [](TestedTable k, const std::string& precision, In<float, 2> x, int64_t tiles) {
             const FlushSubnormals flush;
             const Prepared rows = prepare(*k.at, kind_of<Precision>(precision), x, tiles);
             return copy_array(rows.data.data(), {x.shape(0), rows.stride});
           })
      .def("product", &product, "precision"_a, "packed"_a, "x"_a, "first"_a = 0, "last"_a = -1)
      .def("score_keys",
           [](TestedTable k, In<uint16_t, 2> pages, int64_t begin, int64_t end,
              In<float, 2> queries) {
             const FlushSubnormals flush;
             const TestedPages keys(pages, begin, end);
             const Prepared rows =
                 prepare(*k.at, Precision::kExact, queries, keys.view().width / kBlock);
             auto out = new_array<float>({queries.shape(0), static_cast<size_t>(end - begin)});
             PagesAhead ahead{keys.view(), keys.view()};
             k.at->score_keys(keys.view(), rows.view(), out.data(), end - begin, ahead);
             return out;
           })
      .def("sum_values", [](TestedTable k, In<uint16_t, 2> pages, int64_t begin, int64_t end,
                            In<float, 2> weights) {
        const FlushSubnormals flush;
        const TestedPages values(pages, begin, end);
        const Prepared rows = prepare(*k.at, Precision::kExact, weights, (end - begin) / kBlock);
        auto out = new_array<float>({weights.shape(0), static_cast<size_t>(values.view().width)});
        PagesAhead ahead{values.view(), values.view()};
        k.at->sum_values(values.view(), rows.view(), out.data(), ahead);
        return out;
      });
}

// A copy of x, changed by change(data).
template <class Change>
Out<float> changed(const In<float, 1>& x, const Change& change) {
  const FlushSubnormals flush;
  auto out = copy_array(x.data(), {x.shape(0)});
  change(out.data());
  return out;
}

int64_t length(const In<float, 1>& x) { return static_cast<int64_t>(x.shape(0)); }

void bind_elementwise(nb::class_<TestedTable, KernelTable>& table) {
  table
      .def("rms_norm",
           [](TestedTable k, In<float, 1> x, In<uint16_t, 1> weight, float epsilon, float offset) {
             const FlushSubnormals flush;
             auto out = new_array<float>({x.shape(0)});
             k.at->rms_norm(x.data(), weight.data(), length(x), epsilon, offset, out.data());
             return out;
           })
      .def("layer_norm",
           [](TestedTable k, In<float, 1> x, In<uint16_t, 1> weight, In<uint16_t, 1> bias,
              float epsilon) {
             const FlushSubnormals flush;
             auto out = new_array<float>({x.shape(0)});
             const uint16_t* const offsets = bias.shape(0) > 0 ? bias.data() : nullptr;
             k.at->layer_norm(x.data(), weight.data(), offsets, length(x), epsilon, out.data());
             return out;
           })
      .def("add",
           [](TestedTable k, In<float, 1> x, In<float, 1> y) {
             return changed(x, [&](float* out) { k.at->add(out, y.data(), length(x)); });
           })
      .def("add_bf16",
           [](TestedTable k, In<float, 1> x, In<uint16_t, 1> y) {
             return changed(x, [&](float* out) { k.at->add_bf16(out, y.data(), length(x)); });
           })
      .def("scale",
           [](TestedTable k, In<float, 1> x, float factor) {
             return changed(x, [&](float* out) { k.at->scale(out, factor, length(x)); });
           })
      .def("gated",
           [](TestedTable k, const std::string& activation, In<float, 1> gate, In<float, 1> up) {
             const FlushSubnormals flush;
             auto out = new_array<float>({gate.shape(0)});
             const auto function = activation == "silu"           ? k.at->silu_times
                                   : activation == "gelu"         ? k.at->gelu_times
                                   : activation == "gelu_tanh"    ? k.at->gelu_tanh_times
                                   : activation == "relu_squared" ? k.at->relu_squared_times
                                                                  : k.at->clamped_swiglu;
             const float* const ups = length(up) > 0 ? up.data() : nullptr;
             function(gate.data(), ups, length(gate), out.data());
             return out;
           })
      .def("xielu",
           [](TestedTable k, In<float, 1> x, float positive, float negative, float slope,
              float limit) {
             const FlushSubnormals flush;
             auto out = new_array<float>({x.shape(0)});
             k.at->xielu(x.data(), length(x), {positive, negative, slope, limit}, out.data());
             return out;
           })
      .def("soft_cap",
           [](TestedTable k, In<float, 1> x, float factor, float cap) {
             return changed(x, [&](float* out) { k.at->soft_cap(out, length(x), factor, cap); });
           })
      .def("rotate",
           [](TestedTable k, In<float, 1> x, In<float, 1> cosine, In<float, 1> sine) {
             return changed(x, [&](float* out) {
               k.at->rotate(out, cosine.data(), sine.data(), length(cosine));
             });
           })
      .def(
          "round_bf16",
          [](TestedTable k, In<float, 1> x, bool finite) {
            const FlushSubnormals flush;
            auto out = new_array<uint16_t>({x.shape(0)});
            (finite ? k.at->round_bf16_finite : k.at->round_bf16)(x.data(), length(x), out.data());
            return out;
          },
          "x"_a, "finite"_a = false)
      .def("softmax_part",
           [](TestedTable k, In<float, 1> scores, int64_t begin, int64_t end, float scale) {
             const FlushSubnormals flush;
             auto out = copy_array(scores.data(), {scores.shape(0)});
             const size_t pages = (scores.shape(0) + kPagePositions - 1) / kPagePositions;
             auto page_sums = new_array<float>({pages});
             const auto part = k.at->softmax_part(out.data(), length(scores), begin, end, scale,
                                                  page_sums.data(), nullptr);
             return std::make_tuple(out, part.maximum, part.sum, page_sums);
           })
      .def("merge_part", [](TestedTable k, In<float, 1> values, float maximum, float sum,
                            In<float, 1> part_values, float part_maximum, float part_sum) {
        const FlushSubnormals flush;
        auto out = copy_array(values.data(), {values.shape(0)});
        Kernels::SoftmaxPart running{maximum, sum};
        k.at->merge_part(out.data(), &running, part_values.data(), {part_maximum, part_sum},
                         length(values));
        return std::make_tuple(out, running.maximum, running.sum);
      });
}

}  // namespace

void bind_tested_kernels(nb::module_& m) {
  m.def(
      "planes",
      [](const Packed& p) {
        return std::make_tuple(copy_array(p.codes.data(), {p.codes.size()}),
                               copy_array(p.scales.data(), {p.scales.size()}),
                               copy_array(p.residuals.data(), {p.residuals.size()}),
                               copy_array(p.patch_starts.data(), {p.patch_starts.size()}),
                               copy_array(p.patches.data(), {p.patches.size() - kPatchPadding}),
                               std::tuple(p.view.scale.shift, p.view.scale.base));
      },
      "packed"_a,
      "Returns copies of (codes, scales, residuals, patch_starts, patches, (shift, base)).");
  auto table = nb::class_<TestedTable, KernelTable>(m, "KernelTable");
  bind_products(table);
  bind_elementwise(table);
  m.def("kernels", [](const std::string& name) { return TestedTable{{&kernels_or_throw(name)}}; });
  m.def(
      "kernel_names",
      [] {
        std::vector<std::string> names = available_isas();
        std::reverse(names.begin(), names.end());
#if defined(__x86_64__)
        for (const char* name : {"avx512bf16_other", amx_emulated_kernels()->name})
          if (kernels_named(name) != nullptr) names.emplace_back(name);
#endif
        return names;
      },
      "Returns the names of all tables that run on this machine, the portable one first. Two at\n"
      "the end are for tests only: AVX-512 BF16 for the other width of vector units, and AMX on\n"
      "emulated tiles.");
}

}  // namespace specqd
