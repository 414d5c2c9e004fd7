#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "bf16.h"

namespace specqd {
namespace {

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Where the rows of the sources, stacked, stand among the packed ones; interleaved panels
// alternate.
struct RowMap {
  std::vector<int64_t> packed_row;  // of each stacked row
  int64_t panels = 0;

  RowMap(std::span<const int64_t> source_rows, bool interleaved) {
    const auto sources = static_cast<int64_t>(source_rows.size());
    int64_t stacked = 0, longest = 0;
    for (int64_t s = 0; s < sources; ++s) {
      const int64_t rows = source_rows[static_cast<size_t>(s)];
      longest = std::max(longest, rows);
      for (int64_t row = 0; row < rows; ++row, ++stacked)
        packed_row.push_back(interleaved ? (row / kPanel * sources + s) * kPanel + row % kPanel
                                         : stacked);
    }
    panels =
        interleaved ? (longest + kPanel - 1) / kPanel * sources : (stacked + kPanel - 1) / kPanel;
  }

  // The source row of each packed one; null where it pads.
  std::vector<const uint8_t*> packed(std::span<const RowSource> sources, int64_t columns) const {
    std::vector<const uint8_t*> packed(static_cast<size_t>(panels * kPanel), nullptr);
    size_t stacked = 0;
    for (const RowSource& source : sources)
      for (int64_t row = 0; row < source.rows; ++row, ++stacked)
        packed[static_cast<size_t>(packed_row[stacked])] = source.data + row * columns * 2;
    return packed;
  }
};

using Words = uint32_t __attribute__((vector_size(16)));  // four pairs of weights

// Four rows of four pairs, turned into pairs of four rows.
inline void transpose(const uint8_t* const* rows, int64_t at, uint16_t* out) {
  Words in[4];
  for (int n = 0; n < 4; ++n) std::memcpy(&in[n], rows[n] + at, sizeof(Words));
  const Words a = __builtin_shuffle(in[0], in[1], Words{0, 4, 1, 5});
  const Words b = __builtin_shuffle(in[2], in[3], Words{0, 4, 1, 5});
  const Words c = __builtin_shuffle(in[0], in[1], Words{2, 6, 3, 7});
  const Words d = __builtin_shuffle(in[2], in[3], Words{2, 6, 3, 7});
  const Words pairs[4] = {
      __builtin_shuffle(a, b, Words{0, 1, 4, 5}), __builtin_shuffle(a, b, Words{2, 3, 6, 7}),
      __builtin_shuffle(c, d, Words{0, 1, 4, 5}), __builtin_shuffle(c, d, Words{2, 3, 6, 7})};
  for (int i = 0; i < 4; ++i) std::memcpy(out + i * 32, &pairs[i], sizeof(Words));
}

// One tile of a panel in tile order, zero where it pads.
void gather_tile(const uint8_t* const* rows, int64_t columns, int64_t tile, uint16_t* out) {
  const int64_t first = tile * kBlock;
  if (rows[kPanel - 1] != nullptr && first + kBlock <= columns) {  // rows pad from the end
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

// First position of a weight that is not finite, or -1.
int64_t find_not_finite(const uint16_t* bits, int64_t count) {
  if (!has_not_finite(bits, count)) return -1;
  for (int64_t i = 0;; ++i)
    if ((bits[i] & kBf16Infinity) == kBf16Infinity) return i;
}

// A padding weight needs no patch while it decodes to something finite; its input is zero.
bool is_needed(uint32_t patch, int64_t tile, const uint8_t* const* rows, const uint8_t* scales,
               int64_t columns) {
  const int at = static_cast<int>(patch >> 16);
  const int n = at % 32 / 2, k = at / 32 * 2 + at % 2;
  const bool is_padding = rows[n] == nullptr || tile * kBlock + k >= columns;
  return !is_padding || scales[n] < 4;
}

struct PanelPatches {
  std::vector<uint32_t> patches;
  std::vector<uint32_t> counts;  // of each tile
};

// Bytes of each plane of so many tiles, and where they stand one after the other.
struct Places {
  explicit Places(size_t tiles)
      : codes(tiles * kTileCodes),
        scales(tiles * kPanel),
        residuals(tiles * kTileWeights),
        starts((tiles + 1) * sizeof(uint32_t)),
        plain(tiles * kTileWeights * sizeof(uint16_t)) {}
  size_t scales_at() const { return aligned(codes); }
  size_t residuals_at() const { return scales_at() + aligned(scales); }
  size_t starts_at() const { return residuals_at() + aligned(residuals); }
  size_t end() const { return starts_at() + aligned(starts); }
  // Past this many patches plain BF16 is smaller.
  int64_t most_patches() const {
    return (static_cast<int64_t>(plain) - static_cast<int64_t>(starts_at() + starts)) / 4;
  }
  size_t codes, scales, residuals, starts, plain;
};

// What the threads of one packing share.
struct Packing {
  const Kernels& kernels;
  const std::vector<const uint8_t*> rows;  // packed
  int64_t columns, tiles;
  ScaleRule rule;
  uint8_t* base;
  Places places;
  std::vector<PanelPatches> found;
  std::vector<int64_t> bad;  // of each panel, the first weight that is not finite, or -1
  std::atomic<int64_t> patch_count{0};

  void pack_panel(int64_t panel);
};

void Packing::pack_panel(int64_t panel) {
  const uint8_t* const* panel_rows = rows.data() + panel * kPanel;
  auto& [patches, counts] = found[static_cast<size_t>(panel)];
  counts.reserve(static_cast<size_t>(tiles));
  alignas(64) uint16_t gathered[kTileWeights];
  uint32_t tile_patches[kTileWeights];
  for (int64_t t = 0; t < tiles; ++t) {
    gather_tile(panel_rows, columns, t, gathered);
    if (const int64_t at = find_not_finite(gathered, kTileWeights); at >= 0) {
      bad[static_cast<size_t>(panel)] = t * kTileWeights + at;
      return;
    }
    const int64_t tile = panel * tiles + t;
    const TileOut out{
        base + tile * kTileCodes, base + places.scales_at() + static_cast<size_t>(tile * kPanel),
        base + places.residuals_at() + static_cast<size_t>(tile * kTileWeights), tile_patches};
    const int made = kernels.encode_tile(gathered, rule, out);
    const size_t before = patches.size();
    for (int i = 0; i < made; ++i)
      if (is_needed(tile_patches[i], t, panel_rows, out.scales, columns))
        patches.push_back(tile_patches[i]);
    counts.push_back(static_cast<uint32_t>(patches.size() - before));
  }
  const auto made = static_cast<int64_t>(patches.size());
  if (patch_count.fetch_add(made) + made > places.most_patches()) {
    patches = {};  // it will be plain
    counts = {};
  }
}

PackError bad_weight(const Packing& packing, std::span<const RowSource> sources) {
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

}  // namespace

std::shared_ptr<PackedWeight> PackedWeight::pack(Pool& pool, const Kernels& kernels,
                                                 std::span<const RowSource> sources,
                                                 int64_t columns, Options options,
                                                 PackError* error) {
  std::vector<int64_t> source_rows;
  for (const RowSource& source : sources) source_rows.push_back(source.rows);
  RowMap map(source_rows, options.interleaved);
  const int64_t panels = map.panels, tiles = (columns + kBlock - 1) / kBlock;
  const auto count = static_cast<size_t>(panels * tiles);
  const Places places(count);

  auto weight = std::make_shared<PackedWeight>();
  weight->planes_ = Memory(places.end());
  uint8_t* const base = weight->planes_.data();
  Packing packing{kernels,
                  map.packed(sources, columns),
                  columns,
                  tiles,
                  options.rule,
                  base,
                  places,
                  std::vector<PanelPatches>(static_cast<size_t>(panels)),
                  std::vector<int64_t>(static_cast<size_t>(panels), -1)};
  pool.run([&](Team& team) {
    team.share(panels, 1, [&](int64_t panel, int64_t) { packing.pack_panel(panel); });
  });
  if (*error = bad_weight(packing, sources); error->source >= 0) return nullptr;

  weight->columns_ = columns;
  weight->packed_row_ = std::move(map.packed_row);
  PackedMatrix& m = weight->matrix_;
  m.panels = panels;
  m.tiles = tiles;
  m.codes = base;
  m.scales = base + places.scales_at();
  if (packing.patch_count > places.most_patches()) {  // past 16 bits a weight
    weight->planes_.keep_first(places.residuals_at());
    weight->exact_ = Memory(places.plain);
    auto* const plain = reinterpret_cast<uint16_t*>(weight->exact_.data());
    pool.run([&](Team& team) {
      team.share(panels, 1, [&](int64_t panel, int64_t) {
        for (int64_t t = 0; t < tiles; ++t)
          gather_tile(packing.rows.data() + panel * kPanel, columns, t,
                      plain + (panel * tiles + t) * kTileWeights);
      });
    });
    m.plain = plain;
    return weight;
  }

  const auto patch_count = static_cast<size_t>(packing.patch_count);
  weight->patch_count_ = static_cast<int64_t>(patch_count);
  // Kernels may prefetch, never read, past the end; 64 bytes keep that within the mapping.
  weight->exact_ = Memory(aligned(patch_count * 4) + 64);
  auto* const patches = reinterpret_cast<uint32_t*>(weight->exact_.data());
  auto* const starts = reinterpret_cast<uint32_t*>(base + places.starts_at());
  std::vector<uint32_t> panel_starts{0};
  for (const PanelPatches& panel : packing.found)
    panel_starts.push_back(panel_starts.back() + static_cast<uint32_t>(panel.patches.size()));
  pool.run([&](Team& team) {
    team.share(panels, 1, [&](int64_t panel, int64_t) {
      PanelPatches& found = packing.found[static_cast<size_t>(panel)];
      uint32_t start = panel_starts[static_cast<size_t>(panel)];
      std::copy(found.patches.begin(), found.patches.end(), patches + start);
      for (int64_t t = 0; t < tiles; ++t) {
        starts[panel * tiles + t] = start;
        start += found.counts[static_cast<size_t>(t)];
      }
      found = {};
    });
  });
  starts[count] = panel_starts.back();
  m.residuals = base + places.residuals_at();
  m.patch_starts = starts;
  m.patches = patches;
  return weight;
}

PackedWeight::Planes PackedWeight::planes() const {
  const PackedMatrix& m = matrix_;
  const auto count = static_cast<size_t>(m.panels * m.tiles);
  Planes planes{{m.codes, count * kTileCodes}, {m.scales, count * kPanel}, {}, {}, {}, {}};
  if (m.plain != nullptr) {
    planes.plain = {m.plain, count * kTileWeights};
  } else if (m.residuals != nullptr) {
    planes.residuals = {m.residuals, count * kTileWeights};
    planes.patch_starts = {m.patch_starts, count + 1};
    planes.patches = {m.patches, static_cast<size_t>(patch_count_)};
  }
  return planes;
}

namespace {

bool is_aligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Whether there are codes and scales alone: MXFP4 from the start.
bool is_bare(const PackedWeight::Planes& planes) {
  return planes.plain.empty() && planes.residuals.empty() && planes.patch_starts.empty() &&
         planes.patches.empty();
}

// What is wrong with the sizes or the places of planes; empty where they fit.
std::string misfit(const PackedWeight::Planes& planes, const Places& places) {
  const bool is_plain = !planes.plain.empty(), is_mxfp4 = is_bare(planes);
  const bool fits =
      planes.codes.size_bytes() == places.codes && planes.scales.size_bytes() == places.scales &&
      (is_mxfp4 ||
       (is_plain ? planes.plain.size_bytes() == places.plain && planes.residuals.empty() &&
                       planes.patch_starts.empty() && planes.patches.empty()
                 : planes.residuals.size_bytes() == places.residuals &&
                       planes.patch_starts.size_bytes() == places.starts &&
                       planes.patches.size() <= places.codes * 2));
  if (!fits) return "its planes have other sizes than its rows and columns";
  const bool lies_well =
      is_aligned(planes.codes.data(), 64) && is_aligned(planes.scales.data(), 16) &&
      is_aligned(planes.residuals.data(), 64) && is_aligned(planes.patch_starts.data(), 4) &&
      is_aligned(planes.patches.data(), 4) && is_aligned(planes.plain.data(), 64);
  return lies_well ? "" : "its planes are not aligned";
}

// Whether `has(first, last)` for any part of [0, count).
template <class Has>
bool any_part(Pool& pool, size_t count, const Has& has) {
  std::atomic<bool> found{false};
  pool.run([&](Team& team) {
    team.share(static_cast<int64_t>(count), 1 << 16, [&](int64_t first, int64_t last) {
      if (has(static_cast<size_t>(first), static_cast<size_t>(last))) found = true;
    });
  });
  return found;
}

bool has_wild_scale(Pool& pool, std::span<const uint8_t> scales, uint8_t least, uint8_t largest) {
  return any_part(pool, scales.size(), [&](size_t first, size_t last) {
    bool any = false;
    for (size_t i = first; i < last; ++i) any |= scales[i] < least || scales[i] > largest;
    return any;
  });
}

bool has_wild_patch(Pool& pool, const PackedWeight::Planes& planes) {
  const auto& starts = planes.patch_starts;
  const auto& patches = planes.patches;
  if (starts.front() != 0 || starts.back() != patches.size()) return true;
  const bool runs_backwards = any_part(pool, starts.size() - 1, [&](size_t first, size_t last) {
    bool any = false;
    for (size_t i = first; i < last; ++i) any |= starts[i] > starts[i + 1];
    return any;
  });
  return runs_backwards || any_part(pool, patches.size(), [&](size_t first, size_t last) {
           bool any = false;
           for (size_t i = first; i < last; ++i) any |= patches[i] >= kTileWeights << 16;
           return any;
         });
}

}  // namespace

std::shared_ptr<PackedWeight> PackedWeight::map(Pool& pool, const Planes& planes,
                                                std::span<const int64_t> source_rows,
                                                int64_t columns, bool interleaved,
                                                std::shared_ptr<const void> owner,
                                                std::string* problem) {
  RowMap map(source_rows, interleaved);
  const int64_t tiles = (columns + kBlock - 1) / kBlock;
  const Places places(static_cast<size_t>(map.panels * tiles));
  const bool is_plain = !planes.plain.empty();
  *problem = misfit(planes, places);
  const bool is_mxfp4 = is_bare(planes);
  if (problem->empty() && has_wild_scale(pool, planes.scales, 0, 254)) *problem = "a scale is NaN";
  if (problem->empty() && is_mxfp4 &&
      has_wild_scale(pool, planes.scales, kLeastMxfp4Scale, kLargestMxfp4Scale))
    *problem = "a scale is out of BF16's range";
  if (problem->empty() && !is_plain && !is_mxfp4 && has_wild_patch(pool, planes))
    *problem = "a patch lies outside its tile";
  if (!problem->empty()) return nullptr;

  auto weight = std::make_shared<PackedWeight>();
  weight->columns_ = columns;
  weight->packed_row_ = std::move(map.packed_row);
  weight->patch_count_ = static_cast<int64_t>(planes.patches.size());
  weight->owner_ = std::move(owner);
  PackedMatrix& m = weight->matrix_;
  m.panels = map.panels;
  m.tiles = tiles;
  m.codes = planes.codes.data();
  m.scales = planes.scales.data();
  if (is_plain) {
    m.plain = planes.plain.data();
  } else if (!is_mxfp4) {
    m.residuals = planes.residuals.data();
    m.patch_starts = planes.patch_starts.data();
    m.patches = planes.patches.data();
  }
  return weight;
}

void PackedWeight::read_row(const Kernels& kernels, int64_t row, uint16_t* out) const {
  const int64_t packed = packed_row_[static_cast<size_t>(row)];
  const int64_t panel = packed / kPanel, n = packed % kPanel;
  alignas(64) uint16_t tile[kTileWeights];
  for (int64_t t = 0; t < matrix_.tiles; ++t) {
    kernels.decode_tile(matrix_, panel * matrix_.tiles + t, tile);
    const int64_t count = std::min<int64_t>(kBlock, columns_ - t * kBlock);
    for (int64_t k = 0; k < count; ++k) out[t * kBlock + k] = tile[k / 2 * 32 + n * 2 + k % 2];
  }
}

PackedWeight::Bytes PackedWeight::bytes() const {
  const auto count = static_cast<size_t>(matrix_.panels * matrix_.tiles);
  Bytes bytes{count * kTileCodes, count * kPanel, 0, 0, 0};
  if (matrix_.plain != nullptr) {
    bytes.plain = count * kTileWeights * 2;
  } else if (matrix_.residuals != nullptr) {
    bytes.residuals = count * kTileWeights;
    bytes.patches = (count + 1 + static_cast<size_t>(patch_count_)) * 4;
  }
  return bytes;
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
