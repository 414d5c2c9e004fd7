// The planes of a packed weight: views of them, weights over mapped planes, and decoding. This file
// does not know how planes are packed.
#include <algorithm>
#include <atomic>
#include <utility>

#include "weights/pack.h"
#include "weights/pack_layout.h"

namespace specqd {

PackedWeight::Planes PackedWeight::planes(int node) const {
  const PackedMatrix& m = matrix(node);
  const auto count = static_cast<size_t>(m.panels * m.tiles);
  Planes planes{.codes = {m.codes, count * kTileCodes},
                .scales = {m.scales, count * kPanel},
                .scale_code = {&m.scale.shift, 2}};
  if (m.plain != nullptr) {
    planes.plain = {m.plain, count * kTileWeights};
  } else if (m.residuals != nullptr) {
    planes.residuals = {m.residuals, count * kTileWeights};
    planes.patch_starts = {m.patch_starts, count + 1};
    planes.patches = {m.patches, static_cast<size_t>(patch_count_) + kPatchPadding};
  }
  return planes;
}

namespace {

bool is_aligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Whether the weights were stored as MXFP4: there are only codes and scales.
bool is_stored_mxfp4(const PackedWeight::Planes& planes) {
  return planes.plain.empty() && planes.residuals.empty() && planes.patch_starts.empty() &&
         planes.patches.empty();
}

// Describes what is wrong with the sizes or the alignment of planes; empty if nothing is.
std::string find_misfit(const PackedWeight::Planes& planes, const PlaneLayout& layout) {
  const bool is_plain = !planes.plain.empty(), is_mxfp4 = is_stored_mxfp4(planes);
  const bool fits =
      planes.codes.size_bytes() == layout.codes && planes.scales.size_bytes() == layout.scales &&
      planes.scale_code.size() == 2 &&
      (is_mxfp4 ||
       (is_plain ? planes.plain.size_bytes() == layout.plain && planes.residuals.empty() &&
                       planes.patch_starts.empty() && planes.patches.empty()
                 : planes.residuals.size_bytes() == layout.residuals &&
                       planes.patch_starts.size_bytes() == layout.starts &&
                       planes.patches.size() >= kPatchPadding &&
                       planes.patches.size() <= layout.codes * 2 + kPatchPadding));
  if (!fits) return "the sizes of its planes do not match its rows and columns";
  const bool is_placed_well =
      is_aligned(planes.codes.data(), 64) && is_aligned(planes.scales.data(), 16) &&
      is_aligned(planes.residuals.data(), 64) && is_aligned(planes.patch_starts.data(), 4) &&
      is_aligned(planes.patches.data(), 2) && is_aligned(planes.plain.data(), 64);
  return is_placed_well ? "" : "its planes are not aligned";
}

// Whether has(first, last) is true for any of the ranges into which [0, count) is divided.
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

bool has_scale_outside(Pool& pool, std::span<const uint8_t> scales, uint8_t least,
                       uint8_t largest) {
  return any_part(pool, scales.size(), [&](size_t first, size_t last) {
    bool any = false;
    for (size_t i = first; i < last; ++i) any |= scales[i] < least || scales[i] > largest;
    return any;
  });
}

// Whether a scale, or the scale code, could make a weight leave BF16's finite range.
bool has_bad_scale(Pool& pool, const PackedWeight::Planes& planes) {
  const ScaleCode code{planes.scale_code[0], planes.scale_code[1]};
  const bool is_mxfp4 = is_stored_mxfp4(planes);
  if (code.shift == 20 && !is_mxfp4)
    return code.base % (1 << 20) != 0 || code.first() < kLeastScale ||
           code.first() > kMostScale - 255;
  if (code.shift != 23 || code.base != 0) return true;
  return is_mxfp4 ? has_scale_outside(pool, planes.scales, kLeastMxfp4Scale, kLargestMxfp4Scale)
                  : has_scale_outside(pool, planes.scales, kLeastScale >> 3, kMostScale >> 3);
}

bool has_bad_patch_starts(Pool& pool, const PackedWeight::Planes& planes) {
  const auto& starts = planes.patch_starts;
  if (starts.front() != 0 || starts.back() != planes.patches.size() - kPatchPadding) return true;
  const bool runs_backwards = any_part(pool, starts.size() - 1, [&](size_t first, size_t last) {
    bool any = false;
    for (size_t i = first; i < last; ++i) any |= starts[i] > starts[i + 1];
    return any;
  });
  return runs_backwards;
}

}  // namespace

std::shared_ptr<PackedWeight> PackedWeight::map(Pool& pool, const Planes& planes,
                                                std::span<const int64_t> source_rows,
                                                int64_t columns, bool interleaved,
                                                std::shared_ptr<const void> owner,
                                                std::string* problem) {
  if (columns < 1 || std::ranges::any_of(source_rows, [](int64_t rows) { return rows < 0; })) {
    *problem = "its shape is impossible";
    return nullptr;
  }
  const int64_t panels = panel_count(source_rows, interleaved);
  const int64_t tiles = (columns + kBlock - 1) / kBlock;
  const PlaneLayout layout(static_cast<size_t>(panels * tiles));
  const bool is_plain = !planes.plain.empty();
  *problem = find_misfit(planes, layout);  // before anything of that size is allocated
  const bool is_mxfp4 = is_stored_mxfp4(planes);
  if (problem->empty() && has_bad_scale(pool, planes)) *problem = "a scale is out of range";
  if (problem->empty() && !is_plain && !is_mxfp4 && has_bad_patch_starts(pool, planes))
    *problem = "its patches are not in order";
  if (!problem->empty()) return nullptr;

  auto weight = std::make_shared<PackedWeight>();
  weight->columns_ = columns;
  weight->packed_row_ = RowMap(source_rows, interleaved).packed_row;
  if (!planes.patches.empty())
    weight->patch_count_ = static_cast<int64_t>(planes.patches.size()) - kPatchPadding;
  weight->owner_ = std::move(owner);
  PackedMatrix& m = weight->matrix_;
  m.panels = panels;
  m.tiles = tiles;
  m.codes = planes.codes.data();
  m.scales = planes.scales.data();
  m.scale = {planes.scale_code[0], planes.scale_code[1]};
  if (is_plain) {
    m.plain = planes.plain.data();
  } else if (!is_mxfp4) {
    m.residuals = planes.residuals.data();
    m.patch_starts = planes.patch_starts.data();
    m.patches = planes.patches.data();
  }
  if (pool.placement().copies_mapped) weight->place(pool);
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
    bytes.patches = (count + 1) * 4 + static_cast<size_t>(patch_count_) * 2;
  }
  return bytes;
}

}  // namespace specqd
