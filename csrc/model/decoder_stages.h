// The stages of every product of the decoder; only the decoder's source files include this.
#pragma once

#include <algorithm>
#include <cstring>

#include "model/decoder.h"

namespace specqd {

constexpr int64_t kRowsPreparedByEach = 2;  // up to here a barrier costs more than a second copy
constexpr int64_t kProductPanels = 16;      // most panels per claim
constexpr int64_t kClaimBytes = 512 << 10;  // about the most: a thread waits for another's claim
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

// Returns a function that makes a row's inputs: those that lie in memory, `stride` apart.
inline auto rows_at(const float* rows, int64_t stride) {
  return [=](int64_t row, float*) { return rows + row * stride; };
}

// Returns a function that makes a row's inputs: the residual stream, normed if there is a norm.
inline auto Decoder::normed(const Norm& norm) const {
  return [this, &norm](int64_t row, float* scratch) -> const float* {
    const float* const x = residual_.data() + row * spec_.hidden;
    if (!norm.exists()) return x;
    this->norm(norm, x, spec_.hidden, scratch);
    return scratch;
  };
}

// Returns a function that makes a row's inputs of attention: a pair, where a head does not project
// it.
inline auto Decoder::attention_inputs(const LayerWeights& layer) const {
  const bool is_pair = weights_.entry != nullptr && weights_.entry->projection == nullptr;
  return [this, is_pair, inputs = normed(layer.attention_norm)](int64_t row, float* scratch) {
    return is_pair ? pairs_.data() + row * 2 * spec_.hidden : inputs(row, scratch);
  };
}

// Returns a function that takes the results of a block's last product, applies bias and scale, and
// puts them where `destination` says.
inline auto Decoder::put_output(const Vector& bias, Destination destination) {
  return [this, &bias, destination](int64_t first, int64_t count, float* result, int64_t stride) {
    const int64_t kept = std::min(count, spec_.hidden - first);
    for (int64_t row = 0; row < rows_; ++row) {
      float* const from = result + row * stride;
      float* const out = residual_.data() + row * spec_.hidden + first;
      float* const aside = aside_.data() + row * spec_.hidden + first;
      if (!bias.empty()) kernels_.add_bf16(from, bias.data() + first, kept);
      if (spec_.residual_scale != 1.0f) kernels_.scale(from, spec_.residual_scale, kept);
      if (destination == Destination::kAside)
        std::memcpy(aside, from, static_cast<size_t>(kept) * sizeof(float));
      else
        kernels_.add(out, from, kept);
      if (destination == Destination::kWithAside) kernels_.add(out, aside, kept);
    }
  };
}

template <class Make>
PreparedRows Decoder::prepare(Team& team, Precision precision, int64_t rows,
                              const PackedWeight& next, const Make& make) {
  Scratch& scratch = scratch_[static_cast<size_t>(team.thread())];
  const bool is_draft = precision == Precision::kFp4;
  const int64_t tiles = next.matrix().tiles;
  const size_t stride =
      is_draft ? kernels_.draft_row_bytes(tiles) : kernels_.exact_row_bytes(tiles);
  const bool is_watched = inputs_ != nullptr && precision_ == Precision::kExact;
  const auto fill = [&](uint8_t* data, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* inputs = make(row, scratch.floats());
      if (is_watched) inputs_->hold(next, row, inputs);
      (is_draft ? kernels_.prepare_draft : kernels_.prepare_exact)(
          inputs, next.columns(), tiles, data + static_cast<size_t>(row) * stride);
    }
  };
  team.stage("inputs");
  if (rows <= kRowsPreparedByEach && !is_watched) {
    fill(scratch.prepared.data(), 0, rows);
    return {scratch.prepared.data(), stride, rows};
  }
  team.share(rows, 1, [&](int64_t first, int64_t last) { fill(prepared_.data(), first, last); });
  if (is_watched) inputs_->add(team, kernels_, next, rows);
  return {prepared_.data(), stride, rows};
}

template <class Take>
void Decoder::multiply(Team& team, const char* stage, Precision precision,
                       const PackedWeight& weight, const PreparedRows& x, const Take& take) {
  const PanelRun all{0, weight.matrix().panels, 0};
  multiply_runs(team, stage, precision, weight, {&all, 1}, x, take);
}

template <class Make, class Take>
void Decoder::apply(Team& team, const char* stage, const PackedWeight& weight, const Make& make,
                    const Take& take) {
  multiply(team, stage, precision_, weight, prepare(team, precision_, rows_, weight, make), take);
}

// Prefetches the beginning of a panel, as much as a product prefetches when it continues from the
// panel before it.
inline void fetch_panel(const PackedMatrix& matrix, int64_t panel) {
  constexpr int64_t kTilesAhead = 16, kLine = 64;
  const int64_t tiles = std::min(kTilesAhead, matrix.tiles), first = panel * matrix.tiles;
  for (int64_t at = 0; at < tiles * kTileCodes; at += kLine)
    __builtin_prefetch(matrix.codes + first * kTileCodes + at);
  for (int64_t at = 0; at < tiles * kPanel; at += kLine)
    __builtin_prefetch(matrix.scales + first * kPanel + at);
}

template <class Take>
void Decoder::multiply_runs(Team& team, const char* stage, Precision precision,
                            const PackedWeight& weight, std::span<const PanelRun> runs,
                            const PreparedRows& x, const Take& take) {
  team.stage(stage);
  const PackedMatrix& matrix = weight.matrix(team.node());
  float* const out = scratch_[static_cast<size_t>(team.thread())].products();
  const bool is_draft = precision == Precision::kFp4;
  const auto product = is_draft ? kernels_.draft_product : kernels_.exact_product;
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
  // The first rows of a head, which drafts read, lie on few nodes: reading far beats idling.
  if (panels == matrix.panels)
    team.share_by_node(panels, grain, panels_of(team, panels), work);
  else
    team.share(panels, grain, work);
}

}  // namespace specqd
