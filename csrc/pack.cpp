#include "pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "bf16.h"

namespace specqd {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Which source row each packed row holds: packed[panel * 16 + n], null where it pads.
struct RowMap {
  std::vector<const uint8_t*> packed;
  std::vector<int64_t> packed_row;  // of each stacked row
};

RowMap map_rows(std::span<const RowSource> sources, int64_t columns, bool interleaved) {
  RowMap map;
  const auto put = [&](int64_t at, const RowSource& source, int64_t row) {
    if (at >= static_cast<int64_t>(map.packed.size()))
      map.packed.resize(static_cast<size_t>((at / kPanel + 1) * kPanel), nullptr);
    map.packed[static_cast<size_t>(at)] = source.data + row * columns * 2;
    map.packed_row.push_back(at);
  };
  int64_t stacked = 0;
  for (size_t s = 0; s < sources.size(); ++s)
    for (int64_t row = 0; row < sources[s].rows; ++row, ++stacked) {
      const int64_t step = static_cast<int64_t>(sources.size()) * kPanel;
      const int64_t at = interleaved
                             ? row / kPanel * step + static_cast<int64_t>(s) * kPanel + row % kPanel
                             : stacked;
      put(at, sources[s], row);
    }
  if (interleaved) {
    const size_t step = sources.size() * kPanel;
    map.packed.resize((map.packed.size() + step - 1) / step * step, nullptr);
  }
  return map;
}

// The tiles of one panel in tile order, zero where they pad.
void gather_panel(const uint8_t* const* rows, int64_t columns, int64_t tiles, uint16_t* out) {
  std::memset(out, 0, static_cast<size_t>(tiles) * kTileWeights * sizeof(uint16_t));
  for (int n = 0; n < kPanel; ++n) {
    if (rows[n] == nullptr) continue;
    for (int64_t k = 0; k + 1 < columns; k += 2)
      std::memcpy(out + k / 2 * 32 + n * 2, rows[n] + k * 2, 4);
    if (columns % 2)
      std::memcpy(out + (columns - 1) / 2 * 32 + n * 2, rows[n] + (columns - 1) * 2, 2);
  }
}

// First position of a weight that is not finite, or -1.
int64_t find_not_finite(const uint16_t* tiles, int64_t count) {
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= (tiles[i] & kBf16Infinity) == kBf16Infinity;
  if (!any) return -1;
  for (int64_t i = 0;; ++i)
    if ((tiles[i] & kBf16Infinity) == kBf16Infinity) return i;
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

}  // namespace

Memory::Memory(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes >= kHugePage ? bytes + kHugePage : bytes;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  auto address = reinterpret_cast<uintptr_t>(mapping_);
  if (bytes >= kHugePage) address = (address + kHugePage - 1) / kHugePage * kHugePage;
  data_ = reinterpret_cast<uint8_t*>(address);
#if defined(MADV_HUGEPAGE)
  if (bytes >= kHugePage) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

std::shared_ptr<PackedWeight> PackedWeight::pack(Pool& pool, const Kernels& kernels,
                                                 std::span<const RowSource> sources,
                                                 int64_t columns, Options options,
                                                 PackError* error) {
  RowMap map = map_rows(sources, columns, options.interleaved);
  const int64_t panels = static_cast<int64_t>(map.packed.size()) / kPanel;
  const int64_t tiles = (columns + kBlock - 1) / kBlock, all = panels * tiles;
  const auto count = static_cast<size_t>(all);
  const size_t codes = aligned(count * kTileCodes), scales = aligned(count * kPanel),
               residuals = aligned(count * kTileWeights);

  auto weight = std::make_shared<PackedWeight>();
  weight->columns_ = columns;
  weight->packed_row_ = std::move(map.packed_row);
  weight->planes_ = Memory(codes + scales + residuals + aligned((count + 1) * 4));
  uint8_t* const base = weight->planes_.data();
  auto* const starts = reinterpret_cast<uint32_t*>(base + codes + scales + residuals);

  std::vector<PanelPatches> found(static_cast<size_t>(panels));
  std::vector<int64_t> bad(static_cast<size_t>(panels), -1);
  pool.run([&](Team& team) {
    std::vector<uint16_t> gathered(static_cast<size_t>(tiles) * kTileWeights);
    team.share(panels, 1, [&](int64_t panel, int64_t) {
      const uint8_t* const* rows = map.packed.data() + panel * kPanel;
      gather_panel(rows, columns, tiles, gathered.data());
      auto& [patches, counts] = found[static_cast<size_t>(panel)];
      bad[static_cast<size_t>(panel)] = find_not_finite(gathered.data(), tiles * kTileWeights);
      if (bad[static_cast<size_t>(panel)] >= 0) return;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t tile = panel * tiles + t;
        uint32_t tile_patches[kTileWeights];
        const TileOut out{base + tile * kTileCodes, base + codes + tile * kPanel,
                          base + codes + scales + tile * kTileWeights, tile_patches};
        const int made = kernels.encode_tile(gathered.data() + t * kTileWeights, options.rule, out);
        const size_t before = patches.size();
        for (int i = 0; i < made; ++i)
          if (is_needed(tile_patches[i], t, rows, out.scales, columns))
            patches.push_back(tile_patches[i]);
        counts.push_back(static_cast<uint32_t>(patches.size() - before));
      }
    });
  });

  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t at = bad[static_cast<size_t>(panel)];
    if (at < 0) continue;
    const int64_t n = at % 32 / 2;
    const uint8_t* row = map.packed[static_cast<size_t>(panel * kPanel + n)];
    for (size_t s = 0; s < sources.size(); ++s) {
      const int64_t index = (row - sources[s].data) / (columns * 2);
      if (row >= sources[s].data && index < sources[s].rows)
        *error = {static_cast<int64_t>(s), index,
                  at / kTileWeights * kBlock + at % kTileWeights / 32 * 2 + at % 2};
    }
    return nullptr;
  }

  size_t patch_count = 0;
  for (const PanelPatches& panel : found) patch_count += panel.patches.size();
  weight->patch_count_ = static_cast<int64_t>(patch_count);
  PackedMatrix& m = weight->matrix_;
  m.panels = panels;
  m.tiles = tiles;
  m.codes = base;
  m.scales = base + codes;

  const size_t nested_bytes = codes + scales + residuals + (count + 1 + patch_count) * 4;
  if (nested_bytes > count * kTileWeights * 2) {  // past 16 bits a weight
    weight->exact_ = Memory(count * kTileWeights * 2);
    auto* const plain = reinterpret_cast<uint16_t*>(weight->exact_.data());
    pool.run([&](Team& team) {
      team.share(panels, 1, [&](int64_t panel, int64_t) {
        gather_panel(map.packed.data() + panel * kPanel, columns, tiles,
                     plain + panel * tiles * kTileWeights);
      });
    });
    Memory draft_only(codes + scales);
    std::memcpy(draft_only.data(), base, codes + scales);
    weight->planes_ = std::move(draft_only);
    m.codes = weight->planes_.data();
    m.scales = m.codes + codes;
    m.plain = plain;
    weight->patch_count_ = 0;
    return weight;
  }

  // Kernels may prefetch, never read, past the end; 64 bytes keep that within the mapping.
  weight->exact_ = Memory(aligned(patch_count * 4) + 64);
  auto* const patches = reinterpret_cast<uint32_t*>(weight->exact_.data());
  uint32_t start = 0;
  for (size_t panel = 0, tile = 0; panel < found.size(); ++panel) {
    std::copy(found[panel].patches.begin(), found[panel].patches.end(), patches + start);
    for (const uint32_t in_tile : found[panel].counts) {
      starts[tile++] = start;
      start += in_tile;
    }
  }
  starts[count] = start;
  m.residuals = base + codes + scales;
  m.patch_starts = starts;
  m.patches = patches;
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

}  // namespace specqd
