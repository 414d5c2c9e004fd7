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
constexpr int64_t kProductPanels = 16;      // the most panels per claim
constexpr int64_t kClaimBytes = 512 << 10;  // about the most, because threads wait for the last one
// From this many rows on, the results of 16 panels do not fit into the cache.
constexpr int64_t kManyRows = 64;
constexpr int64_t kProductPanelsOfManyRows = 8;
constexpr int64_t kClaimsPerThread = 4;

// Panels per claim when the threads share `panels` panels of so many bytes for `rows` rows. Even,
// because gate and up panels come in pairs.
inline int64_t panels_of_claim(int64_t panels, size_t panel_bytes, int64_t rows, int64_t threads) {
  const int64_t fair = panels / (threads * kClaimsPerThread);
  const int64_t brief = kClaimBytes / static_cast<int64_t>(panel_bytes);
  const int64_t most =
      rows < kManyRows ? std::min(kProductPanels, brief) : kProductPanelsOfManyRows;
  return std::max<int64_t>(std::min(fair, most) / 2 * 2, 2);
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
  const int64_t grain = panels_of_claim(panels, panel_bytes, x.count, team.threads());
  const auto work = [&](int64_t first, int64_t last) {
    auto run = std::upper_bound(runs.begin(), runs.end(), first,
                                [](int64_t at, const PanelRun& r) { return at < r.before; }) -
               1;
    for (; first < last; ++run) {
      const int64_t from = run->first + first - run->before;
      const int64_t to = std::min(run->last, from + last - first);
      first += to - from;
      if (is_draft && first < last) fetch_panel(matrix, run[1].first);
      const int64_t stride = (to - from) * kPanel;
      product(matrix, from, to, x, out, stride);
      team.tally(matrix.panels, from, to, panel_bytes);
      take(from * kPanel, stride, out, stride);
    }
  };
  // Drafts read the first rows of the output head, which are on few nodes. Reading from
  // another node is faster than leaving threads idle.
  if (panels == matrix.panels)
    team.share_by_node(panels, grain, panels_of(team, panels), work);
  else
    team.share(panels, grain, work);
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
