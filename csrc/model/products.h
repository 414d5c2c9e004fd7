// The products of a forward: rows of inputs are prepared once, and threads share the panels of the
// weight. Only blocks include this.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "model/batch.h"
#include "model/block.h"
#include "model/partial_head.h"
#include "weights/pack.h"

namespace specqd {

constexpr int64_t kRowsPreparedByEach = 2;  // up to here a barrier costs more than a second copy
constexpr int64_t kProductPanels = 16;      // the most that a thread multiplies at once
// From this many rows on, the results of 16 panels do not fit into the cache.
constexpr int64_t kManyRows = 64;
constexpr int64_t kProductPanelsOfManyRows = 8;
constexpr int64_t kLeastClaimBytes = 32 << 10;  // about, because a claim begins without prefetches

// How threads share the panels of a product. Ranges are even, because gate and up panels come in
// pairs.
inline ShrinkingRanges shared_panels(size_t panel_bytes) {
  const int64_t least = kLeastClaimBytes / static_cast<int64_t>(panel_bytes);
  return {std::clamp<int64_t>(least / 2 * 2, 2, kProductPanels)};
}

// Calls multiply(first, last) for parts of panels [first, last) whose results fit into the cache.
template <class Multiply>
void for_parts(int64_t first, int64_t last, int64_t rows, const Multiply& multiply) {
  const int64_t most = rows < kManyRows ? kProductPanels : kProductPanelsOfManyRows;
  for (; first < last; first += most) multiply(first, std::min(first + most, last));
}

// Rows of inputs as they are in memory.
inline RowInputs rows_at(const float* rows, int64_t stride) { return RowInputs(rows, stride); }

// The residual stream, normalised if there is a norm.
inline RowInputs normed(const Batch& batch, const Norm& norm) {
  return RowInputs(batch.residual.data(), batch.traits.spec.hidden, norm, batch.traits);
}

// The rows that get logits, normalised: inputs of the output head.
inline auto normed_logit_rows(const Batch& batch, const Norm& norm) {
  return [&batch, rows = normed(batch, norm)](int64_t i, float* scratch) {
    return rows(batch.logit_rows[static_cast<size_t>(i)], scratch);
  };
}

// Takes the results of a block's last product, adds the bias, scales the sums, and puts them where
// `to` says.
inline auto put_output(Batch& batch, const Vector& bias, Destination to) {
  return [&batch, &bias, to](int64_t first, int64_t count, float* result, int64_t stride) {
    const DecoderSpec& spec = batch.traits.spec;
    const Kernels& kernels = batch.traits.kernels;
    const int64_t kept = std::min(count, spec.hidden - first);
    for (int64_t row = 0; row < batch.rows; ++row) {
      float* const from = result + row * stride;
      float* const out = batch.residual_of(row) + first;
      float* const aside = batch.aside_of(row) + first;
      if (!bias.empty()) kernels.add_bf16(from, bias.data() + first, kept);
      if (spec.residual_scale != 1.0f) kernels.scale(from, spec.residual_scale, kept);
      if (to == Destination::kAside)
        std::memcpy(aside, from, static_cast<size_t>(kept) * sizeof(float));
      else
        kernels.add(out, from, kept);
      if (to == Destination::kWithAside) kernels.add(out, aside, kept);
    }
  };
}

// Copies outputs [from, to) of a product to `out`, [rows][out_stride].
struct Outputs {
  int64_t from, to;
  float* out;
  int64_t out_stride;
  const Vector* bias = nullptr;  // by output of the product; null: none
};
template <size_t kParts>
auto keep_outputs(const Batch& batch, const Outputs (&parts)[kParts]) {
  return [&batch, parts = std::to_array(parts)](int64_t first, int64_t count, const float* result,
                                                int64_t stride) {
    for (const Outputs& part : parts) {
      const int64_t begin = std::max(first, part.from), end = std::min(first + count, part.to);
      for (int64_t row = 0; begin < end && row < batch.rows; ++row) {
        float* const out = part.out + row * part.out_stride + begin - part.from;
        std::memcpy(out, result + row * stride + begin - first,
                    static_cast<size_t>(end - begin) * sizeof(float));
        if (part.bias != nullptr && std::ssize(*part.bias) >= end)
          batch.traits.kernels.add_bf16(out, part.bias->data() + begin, end - begin);
      }
    }
  };
}

// Prepares `rows` rows of inputs for a product with `next`; `make(row, scratch)` returns a row's
// inputs. If there are few rows, every thread prepares its own copy: this is cheaper than a
// barrier.
template <class Make>
PreparedRows prepare(Team& team, Batch& batch, Precision precision, int64_t rows,
                     const PackedWeight& next, const Make& make) {
  const Kernels& kernels = batch.traits.kernels;
  ThreadScratch& scratch = batch.scratch_of(team);
  const bool is_draft = precision == Precision::kFp4;
  const int64_t tiles = next.matrix().tiles;
  const size_t stride = is_draft ? kernels.draft_row_bytes(tiles) : kernels.exact_row_bytes(tiles);
  InputProducts* const watched =
      batch.precision == Precision::kExact ? batch.watched.get() : nullptr;
  const auto fill = [&](uint8_t* data, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* inputs = make(row, scratch.floats());
      if (watched != nullptr) watched->hold(next, row, inputs);
      (is_draft ? kernels.prepare_draft : kernels.prepare_exact)(
          inputs, next.columns(), tiles, data + static_cast<size_t>(row) * stride);
    }
  };
  team.stage("inputs");
  if (rows <= kRowsPreparedByEach && watched == nullptr) {
    fill(scratch.prepared.data(), 0, rows);
    return {scratch.prepared.data(), stride, rows};
  }
  uint8_t* const prepared = batch.prepared.data();
  team.share(rows, 1, [&](int64_t first, int64_t last) { fill(prepared, first, last); });
  if (watched != nullptr) watched->add(team, kernels, next, rows);
  return {prepared, stride, rows};
}

// Prefetches the beginning of a panel: as much as a product prefetches of the next panel.
inline void fetch_panel(const PackedMatrix& matrix, int64_t panel) {
  constexpr int64_t kTilesAhead = 16, kLine = 64;
  const int64_t tiles = std::min(kTilesAhead, matrix.tiles), first = panel * matrix.tiles;
  for (int64_t at = 0; at < tiles * kTileCodes; at += kLine)
    __builtin_prefetch(matrix.codes + first * kTileCodes + at);
  for (int64_t at = 0; at < tiles * kPanel; at += kLine)
    __builtin_prefetch(matrix.scales + first * kPanel + at);
}

// Multiplies prepared rows by panels of `weight`, and passes the result of each range to
// take(first_output, outputs, result, stride). Ends with a barrier. `stage` is its name in a trace.
template <class Take>
void multiply_runs(Team& team, Batch& batch, const char* stage, Precision precision,
                   const PackedWeight& weight, std::span<const PanelRun> runs,
                   const PreparedRows& x, const Take& take) {
  team.stage(stage);
  const PackedMatrix& matrix = weight.matrix(team.node());
  float* const out = batch.scratch_of(team).products();
  const bool is_draft = precision == Precision::kFp4;
  const auto product =
      is_draft ? batch.traits.kernels.draft_product : batch.traits.kernels.exact_product;
  const int64_t panels = runs.back().before + runs.back().last - runs.back().first;
  const size_t panel_bytes = bytes_of(weight, precision) / static_cast<size_t>(matrix.panels);
  const ShrinkingRanges ranges = shared_panels(panel_bytes);
  const auto work = [&](int64_t first, int64_t last) {
    auto run = std::upper_bound(runs.begin(), runs.end(), first,
                                [](int64_t at, const PanelRun& r) { return at < r.before; }) -
               1;
    for (; first < last; ++run) {
      const int64_t from = run->first + first - run->before;
      const int64_t to = std::min(run->last, from + last - first);
      first += to - from;
      if (is_draft && first < last) fetch_panel(matrix, run[1].first);
      for_parts(from, to, x.count, [&](int64_t begin, int64_t end) {
        const int64_t stride = (end - begin) * kPanel;
        product(matrix, begin, end, x, out, stride);
        take(begin * kPanel, stride, out, stride);
      });
      team.tally(matrix.panels, from, to, panel_bytes);
    }
  };
  // Drafts read the first rows of the output head, which are on few nodes. Reading from
  // another node is faster than leaving threads idle.
  if (panels == matrix.panels)
    team.share_by_node(panels, ranges, panels_of(team, panels), work);
  else
    team.divide(panels, ranges, work);
}

// Multiplies prepared rows by all panels of `weight`; see multiply_runs.
template <class Take>
void multiply(Team& team, Batch& batch, const char* stage, Precision precision,
              const PackedWeight& weight, const PreparedRows& x, const Take& take) {
  const PanelRun all{0, weight.matrix().panels, 0};
  multiply_runs(team, batch, stage, precision, weight, {&all, 1}, x, take);
}

// Prepares all rows and multiplies them, in the precision of the forward.
template <class Make, class Take>
void apply(Team& team, Batch& batch, const char* stage, const PackedWeight& weight,
           const Make& make, const Take& take) {
  multiply(team, batch, stage, batch.precision, weight,
           prepare(team, batch, batch.precision, batch.rows, weight, make), take);
}

}  // namespace specqd
