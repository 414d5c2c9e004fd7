// Where rows and planes are in a packed matrix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/memory.h"
#include "runtime/pool.h"
#include "weights/pack.h"

namespace specqd {

inline size_t align(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The number of panels of stacked or interleaved sources. Interleaved sources have as many panels
// each as the longest one needs.
inline int64_t panel_count(std::span<const int64_t> source_rows, bool interleaved) {
  int64_t stacked = 0, longest = 0;
  for (const int64_t rows : source_rows) {
    stacked += rows;
    longest = std::max(longest, rows);
  }
  return interleaved ? (longest + kPanel - 1) / kPanel * std::ssize(source_rows)
                     : (stacked + kPanel - 1) / kPanel;
}

// Maps the rows of the stacked sources to packed rows; interleaved panels alternate.
struct RowMap {
  std::vector<int64_t> packed_row;  // by stacked row
  int64_t panels;

  RowMap(std::span<const int64_t> source_rows, bool interleaved)
      : panels(panel_count(source_rows, interleaved)) {
    const auto sources = std::ssize(source_rows);
    int64_t stacked = 0;
    for (int64_t s = 0; s < sources; ++s) {
      const int64_t rows = source_rows[static_cast<size_t>(s)];
      for (int64_t row = 0; row < rows; ++row, ++stacked)
        packed_row.push_back(interleaved ? (row / kPanel * sources + s) * kPanel + row % kPanel
                                         : stacked);
    }
  }

  // The source row of each packed row; null for padding.
  std::vector<const uint8_t*> pack_rows(std::span<const RowSource> sources, int64_t columns) const {
    std::vector<const uint8_t*> packed(static_cast<size_t>(panels * kPanel), nullptr);
    size_t stacked = 0;
    for (const RowSource& source : sources)
      for (int64_t row = 0; row < source.rows; ++row, ++stacked)
        packed[static_cast<size_t>(packed_row[stacked])] = source.data + row * columns * 2;
    return packed;
  }
};

// Puts the parts of a block on the nodes of a pool: begin(n) to begin(n + 1) on node n. Does
// nothing if the pool's threads may run on all nodes.
template <class Begin>
void put_on_nodes(const Pool& pool, Memory& block, const Begin& begin) {
  if (pool.nodes() == 1 && pool.placement().nodes.front().cpus.empty()) return;
  for (int node = 0; node < pool.nodes(); ++node)
    block.put_on(pool.placement().nodes[static_cast<size_t>(node)].node, begin(node),
                 begin(node + 1));
}

// Puts the patches of each panel on the panel's node. All patches fill a block; first(panel) is the
// index of a panel's first patch.
template <class First>
void put_patches_on_nodes(const Pool& pool, int64_t panels, Memory& block, const First& first) {
  put_on_nodes(pool, block, [&](int node) {
    return node == pool.nodes() ? block.size() : first(pool.bound(node, panels)) * sizeof(uint16_t);
  });
}

// Puts each panel of a plane on the panel's node. The plane begins at an offset of a block.
inline void put_plane_on_nodes(const Pool& pool, int64_t panels, Memory& block, size_t offset,
                               size_t bytes) {
  put_on_nodes(pool, block, [&](int node) {
    return offset +
           bytes / static_cast<size_t>(panels) * static_cast<size_t>(pool.bound(node, panels));
  });
}

// The bytes and offsets of each plane for a number of tiles.
struct PlaneLayout {
  explicit PlaneLayout(size_t tiles)
      : codes(tiles * kTileCodes),
        scales(tiles * kPanel),
        residuals(tiles * kTileWeights),
        starts((tiles + 1) * sizeof(uint32_t)),
        plain(tiles * kTileWeights * sizeof(uint16_t)) {}
  size_t scales_at() const { return align(codes); }
  size_t residuals_at() const { return scales_at() + align(scales); }
  size_t starts_at() const { return residuals_at() + align(residuals); }
  size_t end() const { return starts_at() + align(starts); }
  // With more patches than this, plain BF16 takes less memory.
  int64_t max_patches() const {
    return (static_cast<int64_t>(plain) - static_cast<int64_t>(starts_at() + starts)) / 2;
  }
  void put_planes_on_nodes(const Pool& pool, int64_t panels, Memory& block, bool is_nested) const {
    put_plane_on_nodes(pool, panels, block, 0, codes);
    put_plane_on_nodes(pool, panels, block, scales_at(), scales);
    if (!is_nested) return;
    put_plane_on_nodes(pool, panels, block, residuals_at(), residuals);
    put_plane_on_nodes(pool, panels, block, starts_at(), starts);
  }
  size_t codes, scales, residuals, starts, plain;
};

}  // namespace specqd
