#include "weights/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "kernels/bf16.h"
#include "weights/error_feedback.h"
#include "weights/pack_layout.h"

namespace specqd {
namespace {

using Words = uint32_t __attribute__((vector_size(16)));  // four pairs of weights

// Transposes four pairs of weights of four rows.
inline void transpose(const uint8_t* const* rows, int64_t at, uint16_t* out) {
  Words in[4];
  for (int n = 0; n < 4; ++n) std::memcpy(&in[n], rows[n] + at, sizeof(Words));
  const Words a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
  const Words b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
  const Words c = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Words d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  const Words pairs[4] = {
      __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
      __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) std::memcpy(out + i * 32, &pairs[i], sizeof(Words));
}

// Copies one tile of a panel into tile order; padding becomes zero.
void gather_tile(const uint8_t* const* rows, int64_t columns, int64_t tile, uint16_t* out) {
  const int64_t first = tile * kBlock;
  if (rows[kPanel - 1] != nullptr && first + kBlock <= columns) {  // padding rows come last
    for (int n = 0; n < kPanel; n += 4)
      for (int pair = 0; pair < kBlock / 2; pair += 4)
        transpose(rows + n, (first + pair * 2) * 2, out + pair * 32 + n * 2);
    return;
  }
  std::memset(out, 0, kTileWeights * sizeof(uint16_t));
  const int64_t count = std::min<int64_t>(kBlock, columns - first);
  for (int n = 0; n < kPanel; ++n)
    for (int64_t k = 0; k < count && rows[n] != nullptr; ++k)
      std::memcpy(out + k / 2 * 32 + n * 2 + k % 2, rows[n] + (first + k) * 2, 2);
}

bool has_not_finite(const uint16_t* bits, int64_t count) {
  uint16_t any = 0;
  for (int64_t i = 0; i < count; ++i)
    any |= static_cast<uint16_t>((bits[i] & kBf16Infinity) == kBf16Infinity);
  return any != 0;
}

// The position of the first weight that is not finite, or -1.
int64_t find_not_finite(const uint16_t* bits, int64_t count) {
  if (!has_not_finite(bits, count)) return -1;
  for (int64_t i = 0;; ++i)
    if ((bits[i] & kBf16Infinity) == kBf16Infinity) return i;
}

// Whether a patch belongs to a real weight. A padding weight needs no patch, because it decodes to
// a finite value and its input is zero.
bool is_needed(uint16_t patch, int64_t tile, const uint8_t* const* rows, int64_t columns) {
  const int at = patch >> 7;
  const int n = at % 32 / 2, k = at / 32 * 2 + at % 2;
  return rows[n] != nullptr && tile * kBlock + k < columns;
}

struct PanelPatches {
  std::vector<uint16_t> patches;
  std::vector<uint32_t> counts;  // by tile
};

// The state of one packing, which all threads use.
struct Packing {
  const Kernels& kernels;
  const std::vector<const uint8_t*> rows;  // source rows by packed row; null: padding
  int64_t columns, tiles;
  DraftFormat format;
  ScaleCode scale;
  const std::vector<float> importance;  // [tiles * 32]
  const std::vector<float> factors;     // of error feedback, or empty
  uint8_t* base;
  PlaneLayout layout;
  std::vector<PanelPatches> found;
  std::vector<int64_t> bad;  // by panel: the first weight that is not finite, or -1
  std::atomic<int64_t> patch_count{0};

  void pack_panel(int64_t panel);
};

void Packing::pack_panel(int64_t panel) {
  const uint8_t* const* panel_rows = rows.data() + panel * kPanel;
  auto& [patches, counts] = found[static_cast<size_t>(panel)];
  counts.reserve(static_cast<size_t>(tiles));
  alignas(64) uint16_t gathered[kTileWeights];
  uint16_t tile_patches[kTileWeights];
  ErrorFeedback feedback(factors);
  for (int64_t t = 0; t < tiles; ++t) {
    gather_tile(panel_rows, columns, t, gathered);
    if (const int64_t at = find_not_finite(gathered, kTileWeights); at >= 0) {
      bad[static_cast<size_t>(panel)] = t * kTileWeights + at;
      return;
    }
    const int64_t tile = panel * tiles + t;
    const TileOut out{
        base + tile * kTileCodes, base + layout.scales_at() + static_cast<size_t>(tile * kPanel),
        base + layout.residuals_at() + static_cast<size_t>(tile * kTileWeights), tile_patches};
    const TileScales scales{format, scale, importance.data() + t * kBlock};
    const int made = kernels.encode_tile(gathered, scales, feedback.tile(t), out);
    if (made == kNoPatch) {
      patch_count += layout.max_patches() + 1;  // the weight will be plain
      continue;
    }
    const size_t before = patches.size();
    for (int i = 0; i < made; ++i)
      if (is_needed(tile_patches[i], t, panel_rows, columns)) patches.push_back(tile_patches[i]);
    counts.push_back(static_cast<uint32_t>(patches.size() - before));
  }
  const auto made = static_cast<int64_t>(patches.size());
  if (patch_count.fetch_add(made) + made > layout.max_patches()) {
    patches = {};  // the weight will be plain
    counts = {};
  }
}

PackError find_bad_weight(const Packing& packing, std::span<const RowSource> sources) {
  for (size_t panel = 0; panel < packing.bad.size(); ++panel) {
    const int64_t at = packing.bad[panel];
    if (at < 0) continue;
    const uint8_t* row = packing.rows[panel * kPanel + static_cast<size_t>(at % 32 / 2)];
    for (size_t s = 0; s < sources.size(); ++s) {
      const int64_t index = (row - sources[s].data) / (packing.columns * 2);
      if (row >= sources[s].data && index < sources[s].rows)
        return {static_cast<int64_t>(s), index,
                at / kTileWeights * kBlock + at % kTileWeights / 32 * 2 + at % 2};
    }
  }
  return {};
}

// The BF16 bits of the largest magnitude among all weights.
uint16_t largest_magnitude(Pool& pool, std::span<const RowSource> sources, int64_t columns) {
  std::atomic<uint16_t> largest{0};
  for (const RowSource& source : sources)
    pool.run([&](Team& team) {
      team.share(source.rows, 64, [&](int64_t first, int64_t last) {
        const auto* const bits = reinterpret_cast<const uint16_t*>(source.data) + first * columns;
        uint16_t most = 0;
        for (int64_t i = 0; i < (last - first) * columns; ++i)
          most = std::max(most, static_cast<uint16_t>(bits[i] & kBf16MagnitudeMask));
        for (uint16_t seen = largest; seen < most;)
          if (largest.compare_exchange_weak(seen, most)) break;
      });
    });
  return largest;
}

std::vector<float> padded_importance(std::span<const float> importance, int64_t tiles) {
  std::vector<float> padded(static_cast<size_t>(tiles * kBlock), 1.0f);
  std::copy(importance.begin(), importance.end(), padded.begin());
  return padded;
}

}  // namespace

ScaleCode scale_code_for(DraftFormat format, uint16_t largest) {
  if (format != DraftFormat::kFp4) return {};
  const int first = (largest >> 4) - kLeastBelowLargest - 255;
  return {20, static_cast<uint32_t>(std::clamp(first, kLeastScale, kMostScale - 255)) << 20};
}

std::shared_ptr<PackedWeight> PackedWeight::pack(Pool& pool, const Kernels& kernels,
                                                 std::span<const RowSource> sources,
                                                 int64_t columns, Options options,
                                                 PackError* error) {
  std::vector<int64_t> source_rows;
  for (const RowSource& source : sources) source_rows.push_back(source.rows);
  RowMap map(source_rows, options.interleaved);
  const int64_t panels = map.panels, tiles = (columns + kBlock - 1) / kBlock;
  const auto count = static_cast<size_t>(panels * tiles);
  const PlaneLayout layout(count);

  auto weight = std::make_shared<PackedWeight>();
  weight->planes_ = Memory(layout.end());
  layout.put_planes_on_nodes(pool, panels, weight->planes_, true);
  uint8_t* const base = weight->planes_.data();
  Packing packing{kernels,
                  map.pack_rows(sources, columns),
                  columns,
                  tiles,
                  options.format,
                  scale_code_for(options.format, largest_magnitude(pool, sources, columns)),
                  padded_importance(options.importance, tiles),
                  options.products.empty() ? std::vector<float>()
                                           : feedback_factors(pool, options.products, columns),
                  base,
                  layout,
                  std::vector<PanelPatches>(static_cast<size_t>(panels)),
                  std::vector<int64_t>(static_cast<size_t>(panels), -1)};
  const auto each_panel = [&](const auto& body) {
    pool.run([&](Team& team) {
      team.share_in_place(panels, 1, panels_of(team, panels),
                          [&](int64_t panel, int64_t) { body(panel); });
    });
  };
  each_panel([&](int64_t panel) { packing.pack_panel(panel); });
  if (*error = find_bad_weight(packing, sources); error->source >= 0) return nullptr;

  weight->columns_ = columns;
  weight->packed_row_ = std::move(map.packed_row);
  PackedMatrix& m = weight->matrix_;
  m.panels = panels;
  m.tiles = tiles;
  m.codes = base;
  m.scales = base + layout.scales_at();
  m.scale = packing.scale;
  if (packing.patch_count > layout.max_patches()) {  // nesting would take over 16 bits per weight
    weight->planes_.keep_first(layout.residuals_at());
    weight->exact_ = Memory(layout.plain);
    put_plane_on_nodes(pool, panels, weight->exact_, 0, layout.plain);
    auto* const plain = reinterpret_cast<uint16_t*>(weight->exact_.data());
    each_panel([&](int64_t panel) {
      for (int64_t t = 0; t < tiles; ++t)
        gather_tile(packing.rows.data() + panel * kPanel, columns, t,
                    plain + (panel * tiles + t) * kTileWeights);
    });
    m.plain = plain;
    weight->replicate(pool);
    return weight;
  }

  const auto patch_count = static_cast<size_t>(packing.patch_count);
  weight->patch_count_ = static_cast<int64_t>(patch_count);
  weight->exact_ = Memory((patch_count + kPatchPadding) * sizeof(uint16_t));
  auto* const patches = reinterpret_cast<uint16_t*>(weight->exact_.data());
  auto* const starts = reinterpret_cast<uint32_t*>(base + layout.starts_at());
  std::vector<uint32_t> panel_starts{0};
  for (const PanelPatches& panel : packing.found)
    panel_starts.push_back(panel_starts.back() + static_cast<uint32_t>(panel.patches.size()));
  put_patches_on_nodes(pool, panels, weight->exact_,
                       [&](int64_t panel) { return panel_starts[static_cast<size_t>(panel)]; });
  each_panel([&](int64_t panel) {
    PanelPatches& found = packing.found[static_cast<size_t>(panel)];
    uint32_t start = panel_starts[static_cast<size_t>(panel)];
    std::copy(found.patches.begin(), found.patches.end(), patches + start);
    for (int64_t t = 0; t < tiles; ++t) {
      starts[panel * tiles + t] = start;
      start += found.counts[static_cast<size_t>(t)];
    }
    found = {};
  });
  starts[count] = panel_starts.back();
  m.residuals = base + layout.residuals_at();
  m.patch_starts = starts;
  m.patches = patches;
  weight->replicate(pool);
  return weight;
}

PackError find_not_finite(Pool& pool, RowSource source, int64_t columns) {
  std::atomic<int64_t> bad_row{source.rows};
  const auto bits_of = [&](int64_t row) {
    return reinterpret_cast<const uint16_t*>(source.data) + row * columns;
  };
  pool.run([&](Team& team) {
    team.share(source.rows, 64, [&](int64_t first, int64_t last) {
      if (!has_not_finite(bits_of(first), (last - first) * columns)) return;
      while (!has_not_finite(bits_of(first), columns)) ++first;
      for (int64_t least = bad_row; first < least;)
        if (bad_row.compare_exchange_weak(least, first)) break;
    });
  });
  const int64_t row = bad_row;
  if (row == source.rows) return {};
  return {0, row, find_not_finite(bits_of(row), columns)};
}

}  // namespace specqd
