// Copies packed weights to the NUMA nodes that read them.
#include <cstring>
#include <utility>

#include "weights/pack.h"
#include "weights/pack_layout.h"

namespace specqd {
namespace {

template <class T>
void copy_range(const T* from, T* to, int64_t first, int64_t last) {
  std::memcpy(to + first, from + first, static_cast<size_t>(last - first) * sizeof(T));
}

}  // namespace

// Copies all panels to one node, or each panel to its own node if `node` is -1. Threads of the node
// do the copying.
PackedWeight::Replica PackedWeight::copy(Pool& pool, int node) const {
  const int64_t panels = matrix_.panels, tiles = matrix_.tiles;
  const auto count = static_cast<size_t>(panels * tiles);
  const PlaneLayout layout(count);
  const bool is_plain = matrix_.plain != nullptr, is_whole = is_nested();
  Replica to{matrix_, Memory(layout.end()), {}};
  if (is_plain) to.exact = Memory(layout.plain);
  if (is_whole)
    to.exact = Memory((static_cast<size_t>(patch_count_) + kPatchPadding) * sizeof(uint16_t));
  if (node < 0) {
    layout.put_planes_on_nodes(pool, panels, to.planes, is_whole);
    if (is_plain) put_plane_on_nodes(pool, panels, to.exact, 0, layout.plain);
    if (is_whole)
      put_patches_on_nodes(pool, panels, to.exact,
                           [&](int64_t panel) { return matrix_.patch_starts[panel * tiles]; });
  } else {
    const int id = pool.placement().nodes[static_cast<size_t>(node)].node;
    to.planes.put_on(id, 0, to.planes.size());
    to.exact.put_on(id, 0, to.exact.size());
  }
  uint8_t* const base = to.planes.data();
  auto* const starts = reinterpret_cast<uint32_t*>(base + layout.starts_at());
  auto* const exact = reinterpret_cast<uint16_t*>(to.exact.data());
  pool.run([&](Team& team) {
    const auto bound = [&](int n) {
      return node < 0 ? team.bound(n, panels) : n <= node ? 0 : panels;
    };
    team.share_in_place(panels, 1, bound, [&](int64_t panel, int64_t) {
      const int64_t first = panel * tiles, last = first + tiles;
      copy_range(matrix_.codes, base, first * kTileCodes, last * kTileCodes);
      copy_range(matrix_.scales, base + layout.scales_at(), first * kPanel, last * kPanel);
      if (is_plain) copy_range(matrix_.plain, exact, first * kTileWeights, last * kTileWeights);
      if (!is_whole) return;
      copy_range(matrix_.residuals, base + layout.residuals_at(), first * kTileWeights,
                 last * kTileWeights);
      copy_range(matrix_.patch_starts, starts, first, last);
      copy_range(matrix_.patches, exact, matrix_.patch_starts[first], matrix_.patch_starts[last]);
    });
  });
  to.matrix.codes = base;
  to.matrix.scales = base + layout.scales_at();
  if (is_plain) to.matrix.plain = exact;
  if (!is_whole) return to;
  starts[count] = static_cast<uint32_t>(patch_count_);
  to.matrix.residuals = base + layout.residuals_at();
  to.matrix.patch_starts = starts;
  to.matrix.patches = exact;
  return to;
}

void PackedWeight::replicate(Pool& pool) {
  if (pool.placement().replicates) place(pool);
}

void PackedWeight::place(Pool& pool) {
  if (pool.nodes() == 1) return;
  std::vector<Replica> replicas;
  if (pool.placement().replicates) {
    for (int node = 0; node < pool.nodes(); ++node) replicas.push_back(copy(pool, node));
    planes_ = Memory();
    exact_ = Memory();
    replicas_ = std::move(replicas);
    matrix_ = replicas_.front().matrix;
  } else {
    Replica divided = copy(pool, -1);
    planes_ = std::move(divided.planes);
    exact_ = std::move(divided.exact);
    matrix_ = divided.matrix;
  }
  owner_ = nullptr;
}

}  // namespace specqd
