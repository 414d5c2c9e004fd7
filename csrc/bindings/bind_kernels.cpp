// Binds the parts of an instruction set's kernels that benchmarks use: packing and timed products.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/kernel_table.h"
#include "kernels/bf16.h"
#include "kernels/kernels.h"
#include "runtime/pool.h"
#include "weights/error_feedback.h"
#include "weights/pack.h"

using namespace nanobind::literals;

namespace specqd {

Prepared prepare(const Kernels& kernels, Precision precision, In<float, 2> x, int64_t tiles) {
  const bool exact = precision == Precision::kExact;
  const int64_t inputs = static_cast<int64_t>(x.shape(1));
  if (inputs > tiles * kBlock) throw std::invalid_argument("x has more inputs than the tiles");
  const size_t stride = (exact ? kernels.exact_row_bytes : kernels.draft_row_bytes)(tiles);
  Prepared rows{stride, static_cast<int64_t>(x.shape(0)), Pages<uint8_t>(stride * x.shape(0))};
  std::memset(rows.data.data(), 0xff, rows.data.size());
  for (size_t m = 0; m < x.shape(0); ++m)
    (exact ? kernels.prepare_exact : kernels.prepare_draft)(x.data() + m * x.shape(1), inputs,
                                                            tiles, rows.data.data() + m * stride);
  return rows;
}

namespace {

std::unique_ptr<Packed> pack(KernelTable table, In<uint16_t, 3> tiles, const std::string& format,
                             bool plain, const std::optional<In<float, 1>>& importance,
                             const std::optional<In<float, 2>>& factors) {
  if (tiles.shape(2) != kTileWeights) throw std::invalid_argument("a tile has 512 weights");
  const size_t count = tiles.shape(0) * tiles.shape(1);
  auto packed = std::make_unique<Packed>();
  packed->codes = Pages<uint8_t>(count * kTileCodes);
  packed->scales = Pages<uint8_t>(count * kPanel);
  packed->residuals = Pages<uint8_t>(count * kTileWeights);
  packed->patch_starts = Pages<uint32_t>(count + 1);
  std::vector<uint16_t> patches;
  std::vector<float> weights(tiles.shape(1) * kBlock, 1.0f);
  if (importance) {
    if (importance->size() != weights.size())
      throw std::invalid_argument("importance must be [tiles * 32]");
    weights.assign(importance->data(), importance->data() + weights.size());
  }
  if (factors && (factors->shape(0) != weights.size() || factors->shape(1) % kBlock != 0 ||
                  factors->shape(1) == 0))
    throw std::invalid_argument("factors must be [tiles * 32, group]");
  ErrorFeedback feedback(
      factors ? std::span(factors->data(), factors->size()) : std::span<const float>(),
      factors ? static_cast<int64_t>(factors->shape(1)) : kFeedbackInputs);
  uint16_t largest = 0;
  for (size_t i = 0; i < tiles.size(); ++i)
    largest = std::max(largest, static_cast<uint16_t>(tiles.data()[i] & kBf16MagnitudeMask));
  TileScales scales{kind_of<DraftFormat>(format), {}, nullptr};
  scales.code = scale_code_for(scales.format, largest);
  for (size_t i = 0; i < count; ++i) {
    scales.importance = weights.data() + i % tiles.shape(1) * kBlock;
    uint16_t tile_patches[kTileWeights];
    const TileOut out{packed->codes.data() + i * kTileCodes, packed->scales.data() + i * kPanel,
                      packed->residuals.data() + i * kTileWeights, tile_patches};
    const int n =
        table.at->encode_tile(tiles.data() + i * kTileWeights, scales,
                              feedback.tile(static_cast<int64_t>(i % tiles.shape(1))), out);
    plain |= n == kNoPatch;
    if (plain) continue;
    patches.insert(patches.end(), tile_patches, tile_patches + n);
    packed->patch_starts.data()[i + 1] = static_cast<uint32_t>(patches.size());
  }
  packed->patches = Pages<uint16_t>(patches.size() + kPatchPadding);
  std::copy(patches.begin(), patches.end(), packed->patches.data());
  PackedMatrix& view = packed->view;
  view = {.panels = static_cast<int64_t>(tiles.shape(0)),
          .tiles = static_cast<int64_t>(tiles.shape(1)),
          .codes = packed->codes.data(),
          .scales = packed->scales.data(),
          .scale = scales.code};
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

// Returns the seconds per product in each of `repeats` runs of `rounds` products. Threads claim
// panels as in a forward.
std::vector<double> time_product(KernelTable table, const std::string& precision,
                                 const Packed& packed, In<float, 2> x, Pool& pool, int repeats,
                                 int rounds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kGrain = 16;
  const Kernels& kernels = *table.at;
  const Precision kind = kind_of<Precision>(precision);
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

}  // namespace

void bind_kernels(nb::module_& m) {
  nb::class_<Packed>(m, "Packed")
      .def_prop_ro("weights", &Packed::weights)
      .def("bytes", [](const Packed& p, const std::string& precision) {
        return p.bytes(kind_of<Precision>(precision) == Precision::kExact);
      });
  nb::class_<KernelTable>(m, "KernelTable")
      .def_prop_ro("name", [](KernelTable k) { return k.at->name; })
      .def("pack", &pack, "tiles"_a, "format"_a = "fp4", "plain"_a = false,
           "importance"_a.none() = nb::none(), "factors"_a.none() = nb::none())
      .def("time_product", &time_product, "precision"_a, "packed"_a, "x"_a, "pool"_a,
           "repeats"_a = 5, "rounds"_a = 1);
  m.def("kernels", [](const std::string& name) { return KernelTable{&kernels_or_throw(name)}; });
}

}  // namespace specqd
