#include "model/pair_entry.h"

#include <algorithm>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/float_mode.h"
#include "model/products.h"

namespace specqd {
namespace {

void widen(const uint16_t* bits, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(bits[i]);
}

}  // namespace

PairEntry::PairEntry(const DecoderWeights& weights, Batch& batch)
    : entry_(weights.entry),
      embedding_(weights.embedding),
      final_norm_(weights.final_norm),
      traits_(batch.traits) {
  batch.pairs.resize(2 * batch.residual.size());
}

int64_t PairEntry::feature_width() const {
  return entry_->fc == nullptr ? traits_.spec.hidden : entry_->fc->columns();
}

std::vector<BlockMatrix> PairEntry::matrices() const {
  std::vector<BlockMatrix> all;
  for (const auto& weight : {entry_->fc, entry_->projection})
    if (weight != nullptr) all.push_back({.weight = weight.get()});
  return all;
}

void PairEntry::recycle(const Batch& batch, int64_t row, std::span<uint16_t> out) const {
  const FlushSubnormals flush;
  const float* from = batch.residual.data() + row * traits_.spec.hidden;
  std::vector<float> normed;
  if (entry_->recycles_normed) {
    normed.resize(out.size());
    traits_.norm(final_norm_, from, traits_.spec.hidden, normed.data());
    from = normed.data();
  }
  traits_.kernels.round_bf16_finite(from, traits_.spec.hidden, out.data());
}

// Reads a row's feature into `scratch`, and normalises it.
const float* PairEntry::read_feature(const Batch& batch, int64_t row, float* scratch) const {
  const int64_t columns = feature_width();
  widen(batch.pair_inputs.values.data() + row * columns, columns, scratch);
  const int64_t taps = std::ssize(entry_->tap_norms), width = taps > 0 ? columns / taps : 0;
  for (int64_t i = 0; i < taps; ++i)
    traits_.norm(entry_->tap_norms[static_cast<size_t>(i)], scratch + i * width, width,
                 scratch + i * width);
  if (entry_->features_norm.exists())
    traits_.norm(entry_->features_norm, scratch, columns, scratch);
  return scratch;
}

// Makes a row's pair from its hidden row and the embedding of its token. `bits` is scratch memory
// for one row.
void PairEntry::make_pair(Batch& batch, int64_t row, uint16_t* bits) const {
  const int64_t hidden = traits_.spec.hidden, token = batch.tokens[static_cast<size_t>(row)];
  if (token == kBlank)
    std::fill_n(bits, hidden, uint16_t{0});
  else if (entry_->embedding != nullptr)
    entry_->embedding->read_row(traits_.kernels, token, bits);
  else
    std::memcpy(bits, embedding_ + token * hidden * 2, static_cast<size_t>(hidden) * 2);
  float* const pair = batch.pairs.data() + row * 2 * hidden;
  float* const residual = batch.residual_of(row);
  float* const embedded = pair + (entry_->hidden_first ? hidden : 0);
  float* const normed = pair + (entry_->hidden_first ? 0 : hidden);
  widen(bits, hidden, embedded);
  traits_.norm(entry_->embedding_norm, embedded, hidden, embedded);
  if (batch.pair_inputs.are_recycled)
    widen(batch.pair_inputs.values.data() + row * hidden, hidden, residual);
  else if (entry_->fc == nullptr)
    read_feature(batch, row, residual);
  traits_.norm(entry_->hidden_norm, residual, hidden, normed);
  if (entry_->keeps_normed) std::copy_n(normed, hidden, residual);
}

void PairEntry::run(Team& team, Batch& batch, const RowInputs&, Destination) const {
  const int64_t hidden = traits_.spec.hidden;
  const Outputs to_residual{0, hidden, batch.residual.data(), hidden};
  const bool reads_fc = !batch.pair_inputs.are_recycled && entry_->fc != nullptr;
  if (entry_->fc != nullptr && !reads_fc && team.thread() == 0)
    batch.moved_bytes -= bytes_of(*entry_->fc, batch.precision);
  if (reads_fc) {
    const auto features = [&](int64_t row, float* scratch) {
      return read_feature(batch, row, scratch);
    };
    apply(team, batch, "features", *entry_->fc, features, keep_outputs(batch, {to_residual}));
  }
  team.stage("pairs");
  team.share(batch.rows, 1, [&](int64_t first, int64_t last) {
    std::vector<uint16_t> bits(static_cast<size_t>(hidden));
    for (int64_t row = first; row < last; ++row) make_pair(batch, row, bits.data());
  });
  record(team, batch, "pairs", batch.pairs.data(), 2 * hidden, 2 * hidden);
  if (!is_projected()) return;
  apply(team, batch, "projection", *entry_->projection, rows_at(batch.pairs.data(), 2 * hidden),
        keep_outputs(batch, {to_residual}));
}

}  // namespace specqd
