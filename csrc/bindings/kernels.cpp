// Binds the kernels of each instruction set, for tests and benchmarks.
#include "kernels/kernels.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/float_mode.h"
#include "runtime/cpu.h"
#include "runtime/pool.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace specqd {
namespace {

template <class T, int Dimensions>
using In = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T>;

// Memory aligned to a large page, so that benchmarks do not measure the page tables.
template <class T>
class Pages {
 public:
  explicit Pages(size_t count = 0) : count_(count) {
    constexpr size_t kLargePage = size_t{2} << 20;
    const size_t bytes = (count * sizeof(T) + kLargePage) / kLargePage * kLargePage;
    data_.reset(static_cast<T*>(std::aligned_alloc(kLargePage, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
    std::memset(data_.get(), 0, bytes);
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> data_;
  size_t count_;
};

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
Out<T> copied(const T* from, std::initializer_list<size_t> shape) {
  Out<T> out = new_array<T>(shape);
  std::memcpy(out.data(), from, out.nbytes());
  return out;
}

// A packed matrix that owns its planes.
struct Packed {
  Pages<uint8_t> codes, scales, residuals;
  Pages<uint32_t> patch_starts, patches;
  Pages<uint16_t> plain;
  PackedMatrix view;

  int64_t weights() const { return view.panels * view.tiles * kTileWeights; }
  size_t bytes(bool exact) const {
    if (!exact) return codes.size() + scales.size();
    if (view.plain != nullptr) return plain.size() * 2;
    return codes.size() + scales.size() + residuals.size() +
           4 * (patch_starts.size() + patches.size());
  }
};

std::unique_ptr<Packed> pack(const Kernels& kernels, In<uint16_t, 3> tiles, const std::string& rule,
                             bool plain) {
  if (tiles.shape(2) != kTileWeights) throw std::invalid_argument("a tile has 512 weights");
  const size_t count = tiles.shape(0) * tiles.shape(1);
  auto packed = std::make_unique<Packed>();
  packed->codes = Pages<uint8_t>(count * kTileCodes);
  packed->scales = Pages<uint8_t>(count * kPanel);
  packed->residuals = Pages<uint8_t>(count * kTileWeights);
  packed->patch_starts = Pages<uint32_t>(count + 1);
  std::vector<uint32_t> patches;
  const ScaleRule scale_rule = rule == "mse" ? ScaleRule::kMse : ScaleRule::kFloor;
  for (size_t i = 0; i < count; ++i) {
    uint32_t tile_patches[kTileWeights];
    const TileOut out{packed->codes.data() + i * kTileCodes, packed->scales.data() + i * kPanel,
                      packed->residuals.data() + i * kTileWeights, tile_patches};
    const int n = kernels.encode_tile(tiles.data() + i * kTileWeights, scale_rule, out);
    patches.insert(patches.end(), tile_patches, tile_patches + n);
    packed->patch_starts.data()[i + 1] = static_cast<uint32_t>(patches.size());
  }
  packed->patches = Pages<uint32_t>(patches.size());
  std::copy(patches.begin(), patches.end(), packed->patches.data());
  PackedMatrix& view = packed->view;
  view = {.panels = static_cast<int64_t>(tiles.shape(0)),
          .tiles = static_cast<int64_t>(tiles.shape(1)),
          .codes = packed->codes.data(),
          .scales = packed->scales.data()};
  if (plain) {
    packed->plain = Pages<uint16_t>(count * kTileWeights);
    std::copy_n(tiles.data(), count * kTileWeights, packed->plain.data());
    view.plain = packed->plain.data();
  } else {
    view.residuals = packed->residuals.data();
    view.patch_starts = packed->patch_starts.data();
    view.patches = packed->patches.data();
  }
  return packed;
}

Out<uint16_t> unpack(const Kernels& kernels, const Packed& packed) {
  auto out = new_array<uint16_t>(
      {size_t(packed.view.panels), size_t(packed.view.tiles), size_t(kTileWeights)});
  for (int64_t i = 0; i < packed.view.panels * packed.view.tiles; ++i)
    kernels.decode_tile(packed.view, i, out.data() + i * kTileWeights);
  return out;
}

enum class Precision { kExact, kFp4 };

Precision precision_named(const std::string& name) {
  if (name == "exact") return Precision::kExact;
  if (name == "fp4") return Precision::kFp4;
  throw std::invalid_argument("a precision is exact or fp4");
}

struct Prepared {
  size_t stride;
  int64_t rows;
  Pages<uint8_t> data;
  PreparedRows view() const { return {data.data(), stride, rows}; }
};

Prepared prepare(const Kernels& kernels, Precision precision, In<float, 2> x, int64_t tiles) {
  const bool exact = precision == Precision::kExact;
  const int64_t inputs = static_cast<int64_t>(x.shape(1));
  if (inputs > tiles * kBlock) throw std::invalid_argument("more inputs than the tiles have");
  const size_t stride = (exact ? kernels.exact_row_bytes : kernels.draft_row_bytes)(tiles);
  Prepared rows{stride, static_cast<int64_t>(x.shape(0)), Pages<uint8_t>(stride * x.shape(0))};
  std::memset(rows.data.data(), 0xff, rows.data.size());
  for (size_t m = 0; m < x.shape(0); ++m)
    (exact ? kernels.prepare_exact : kernels.prepare_draft)(x.data() + m * x.shape(1), inputs,
                                                            tiles, rows.data.data() + m * stride);
  return rows;
}

Out<float> product(const Kernels& kernels, const std::string& precision, const Packed& packed,
                   In<float, 2> x, int64_t first, int64_t last) {
  const FlushSubnormals flush;
  if (last < 0) last = packed.view.panels;
  if (first < 0 || first > last || last > packed.view.panels)
    throw std::invalid_argument("no such panels");
  const Precision kind = precision_named(precision);
  const Prepared rows = prepare(kernels, kind, x, packed.view.tiles);
  const size_t columns = static_cast<size_t>(last - first) * kPanel;
  auto out = new_array<float>({x.shape(0), columns});
  (kind == Precision::kExact ? kernels.exact_product : kernels.draft_product)(
      packed.view, first, last, rows.view(), out.data(), static_cast<int64_t>(columns));
  return out;
}

// Seconds per product in each of `repeats` runs of `rounds` products. The threads share the panels
// as in a forward.
std::vector<double> time_product(const Kernels& kernels, const std::string& precision,
                                 const Packed& packed, In<float, 2> x, Pool& pool, int repeats,
                                 int rounds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kGrain = 16;
  const Precision kind = precision_named(precision);
  const Prepared rows = prepare(kernels, kind, x, packed.view.tiles);
  const auto function = kind == Precision::kExact ? kernels.exact_product : kernels.draft_product;
  std::vector<Pages<float>> outs;
  for (int i = 0; i < pool.threads(); ++i) outs.emplace_back(x.shape(0) * kGrain * kPanel);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto begin = Clock::now();
    pool.run([&](Team& team) {
      float* const out = outs[static_cast<size_t>(team.thread())].data();
      for (int round = 0; round < rounds; ++round)
        team.share(packed.view.panels, kGrain, [&](int64_t first, int64_t last) {
          function(packed.view, first, last, rows.view(), out, kGrain * kPanel);
        });
    });
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / rounds);
  }
  return seconds;
}

const Kernels* find_kernels(const std::string& name) {
  const Kernels* kernels = kernels_named(name);
  if (kernels == nullptr) throw std::invalid_argument("instruction set not available: " + name);
  return kernels;
}

// The Python class of a table of kernels.
struct KernelTable {
  const Kernels* at;
};

void bind_products(nb::class_<KernelTable>& table) {
  table
      .def(
          "pack",
          [](KernelTable k, In<uint16_t, 3> tiles, const std::string& rule, bool plain) {
            return pack(*k.at, tiles, rule, plain);
          },
          "tiles"_a, "rule"_a = "floor", "plain"_a = false)
      .def("unpack", [](KernelTable k, const Packed& packed) { return unpack(*k.at, packed); })
      .def("prepare",
           [](KernelTable k, const std::string& precision, In<float, 2> x, int64_t tiles) {
             const FlushSubnormals flush;
             const Prepared rows = prepare(*k.at, precision_named(precision), x, tiles);
             return copied(rows.data.data(), {x.shape(0), rows.stride});
           })
      .def(
          "product",
          [](KernelTable k, const std::string& precision, const Packed& packed, In<float, 2> x,
             int64_t first,
             int64_t last) { return product(*k.at, precision, packed, x, first, last); },
          "precision"_a, "packed"_a, "x"_a, "first"_a = 0, "last"_a = -1)
      .def("accumulate_plain",
           [](KernelTable k, In<uint16_t, 3> tiles, In<float, 2> x, In<float, 2> start) {
             const FlushSubnormals flush;
             const auto panels = static_cast<int64_t>(tiles.shape(0));
             const auto count = static_cast<int64_t>(tiles.shape(1));
             const Prepared rows = prepare(*k.at, Precision::kExact, x, count);
             auto out = copied(start.data(), {start.shape(0), start.shape(1)});
             const PlainPanels w{tiles.data(), panels, count, count * kTileWeights, tiles.data()};
             k.at->accumulate_plain(w, rows.view(), out.data(),
                                    static_cast<int64_t>(start.shape(1)));
             return out;
           })
      .def(
          "time_product",
          [](KernelTable k, const std::string& precision, const Packed& packed, In<float, 2> x,
             Pool& pool, int repeats, int rounds) {
            return time_product(*k.at, precision, packed, x, pool, repeats, rounds);
          },
          "precision"_a, "packed"_a, "x"_a, "pool"_a, "repeats"_a = 5, "rounds"_a = 1);
}

int64_t length(const In<float, 1>& x) { return static_cast<int64_t>(x.shape(0)); }

void bind_elementwise(nb::class_<KernelTable>& table) {
  table
      .def("rms_norm",
           [](KernelTable k, In<float, 1> x, In<uint16_t, 1> weight, float epsilon, float offset) {
             const FlushSubnormals flush;
             auto out = new_array<float>({x.shape(0)});
             k.at->rms_norm(x.data(), weight.data(), length(x), epsilon, offset, out.data());
             return out;
           })
      .def("layer_norm",
           [](KernelTable k, In<float, 1> x, In<uint16_t, 1> weight, In<uint16_t, 1> bias,
              float epsilon) {
             const FlushSubnormals flush;
             auto out = new_array<float>({x.shape(0)});
             const uint16_t* const offsets = bias.shape(0) > 0 ? bias.data() : nullptr;
             k.at->layer_norm(x.data(), weight.data(), offsets, length(x), epsilon, out.data());
             return out;
           })
      .def("add",
           [](KernelTable k, In<float, 1> x, In<float, 1> y) {
             const FlushSubnormals flush;
             auto out = copied(x.data(), {x.shape(0)});
             k.at->add(out.data(), y.data(), length(x));
             return out;
           })
      .def("add_bf16",
           [](KernelTable k, In<float, 1> x, In<uint16_t, 1> y) {
             const FlushSubnormals flush;
             auto out = copied(x.data(), {x.shape(0)});
             k.at->add_bf16(out.data(), y.data(), length(x));
             return out;
           })
      .def("scale",
           [](KernelTable k, In<float, 1> x, float factor) {
             const FlushSubnormals flush;
             auto out = copied(x.data(), {x.shape(0)});
             k.at->scale(out.data(), factor, length(x));
             return out;
           })
      .def("gated",
           [](KernelTable k, const std::string& activation, In<float, 1> gate, In<float, 1> up) {
             const FlushSubnormals flush;
             auto out = new_array<float>({gate.shape(0)});
             const auto function = activation == "silu"        ? k.at->silu_times
                                   : activation == "gelu"      ? k.at->gelu_times
                                   : activation == "gelu_tanh" ? k.at->gelu_tanh_times
                                                               : k.at->clamped_swiglu;
             const float* const ups = length(up) > 0 ? up.data() : nullptr;
             function(gate.data(), ups, length(gate), out.data());
             return out;
           })
      .def("soft_cap",
           [](KernelTable k, In<float, 1> x, float factor, float cap) {
             const FlushSubnormals flush;
             auto out = copied(x.data(), {x.shape(0)});
             k.at->soft_cap(out.data(), length(x), factor, cap);
             return out;
           })
      .def("rotate",
           [](KernelTable k, In<float, 1> x, In<float, 1> cosine, In<float, 1> sine) {
             const FlushSubnormals flush;
             auto out = copied(x.data(), {x.shape(0)});
             k.at->rotate(out.data(), cosine.data(), sine.data(), length(cosine));
             return out;
           })
      .def(
          "round_bf16",
          [](KernelTable k, In<float, 1> x, bool finite) {
            const FlushSubnormals flush;
            auto out = new_array<uint16_t>({x.shape(0)});
            (finite ? k.at->round_bf16_finite : k.at->round_bf16)(x.data(), length(x), out.data());
            return out;
          },
          "x"_a, "finite"_a = false)
      .def("softmax_part",
           [](KernelTable k, In<float, 1> scores, int64_t begin, int64_t end, float scale) {
             const FlushSubnormals flush;
             auto out = copied(scores.data(), {scores.shape(0)});
             const auto part = k.at->softmax_part(out.data(), length(scores), begin, end, scale);
             return std::make_tuple(out, part.maximum, part.sum);
           })
      .def("merge_part", [](KernelTable k, In<float, 1> values, float maximum, float sum,
                            In<float, 1> part_values, float part_maximum, float part_sum) {
        const FlushSubnormals flush;
        auto out = copied(values.data(), {values.shape(0)});
        Kernels::SoftmaxPart running{maximum, sum};
        k.at->merge_part(out.data(), &running, part_values.data(), {part_maximum, part_sum},
                         length(values));
        return std::make_tuple(out, running.maximum, running.sum);
      });
}

}  // namespace

void bind_kernels(nb::module_& m) {
  nb::class_<Packed>(m, "Packed")
      .def_prop_ro("weights", &Packed::weights)
      .def("bytes",
           [](const Packed& p, const std::string& precision) {
             return p.bytes(precision_named(precision) == Precision::kExact);
           })
      .def_prop_ro(
          "planes",
          [](const Packed& p) {
            return std::make_tuple(copied(p.codes.data(), {p.codes.size()}),
                                   copied(p.scales.data(), {p.scales.size()}),
                                   copied(p.residuals.data(), {p.residuals.size()}),
                                   copied(p.patch_starts.data(), {p.patch_starts.size()}),
                                   copied(p.patches.data(), {p.patches.size()}));
          },
          nb::rv_policy::move);
  auto table = nb::class_<KernelTable>(m, "KernelTable").def_prop_ro("name", [](KernelTable k) {
    return k.at->name;
  });
  bind_products(table);
  bind_elementwise(table);
  m.def("kernels", [](const std::string& name) { return KernelTable{find_kernels(name)}; });
  // Every table that can run on this machine, the portable one first. The last two are for tests
  // only: AVX-512 BF16 for the other kind of core, and AMX on emulated tiles.
  m.def("kernel_names", [] {
    std::vector<std::string> names = available_isas();
    std::reverse(names.begin(), names.end());
#if defined(__x86_64__)
    for (const char* name : {"avx512bf16_other", amx_emulated_kernels()->name})
      if (kernels_named(name) != nullptr) names.emplace_back(name);
#endif
    return names;
  });
}

}  // namespace specqd
