// The entry of a head: features or recycled hidden rows, each beside the embedding of a token.
#include <algorithm>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/float_mode.h"
#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

void widen(const uint16_t* bits, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(bits[i]);
}

}  // namespace

int64_t Decoder::feature_width() const {
  const auto& fc = weights_.entry->fc;
  return fc == nullptr ? spec_.hidden : fc->columns();
}

size_t Decoder::entry_bytes(Precision precision) const {
  size_t bytes = 0;
  for (const auto& weight : {weights_.entry->fc, weights_.entry->projection})
    if (weight != nullptr) bytes += bytes_of(*weight, precision);
  return bytes;
}

void Decoder::forward_pairs(Precision precision, const KvCache& cache, HeadInputs inputs,
                            std::span<const int32_t> tokens, std::span<const ForwardRows> sequences,
                            HeadUse head) {
  inputs_of_pairs_ = inputs;
  forward(precision, cache, tokens, sequences, head);
  if (const auto& fc = weights_.entry->fc; inputs.are_recycled && fc != nullptr)
    moved_bytes_ -= bytes_of(*fc, precision);
}

void Decoder::recycle(int64_t row, std::span<uint16_t> out) const {
  const FlushSubnormals flush;
  const float* from = residual_.data() + row * spec_.hidden;
  std::vector<float> normed;
  if (weights_.entry->recycles_normed) {
    normed.resize(out.size());
    norm(weights_.final_norm, from, spec_.hidden, normed.data());
    from = normed.data();
  }
  kernels_.round_bf16_finite(from, spec_.hidden, out.data());
}

// A row's feature, normed.
const float* Decoder::enter_feature(int64_t row, float* scratch) const {
  const HeadEntry& entry = *weights_.entry;
  const int64_t columns = feature_width();
  widen(inputs_of_pairs_.values.data() + row * columns, columns, scratch);
  const int64_t taps = std::ssize(entry.tap_norms), width = taps > 0 ? columns / taps : 0;
  for (int64_t i = 0; i < taps; ++i)
    norm(entry.tap_norms[static_cast<size_t>(i)], scratch + i * width, width, scratch + i * width);
  if (entry.features_norm.exists()) norm(entry.features_norm, scratch, columns, scratch);
  return scratch;
}

// Makes a row's pair of its hidden row and the embedding of its token. `bits` has room for a row.
void Decoder::make_pair(int64_t row, uint16_t* bits) {
  const HeadEntry& entry = *weights_.entry;
  const int64_t hidden = spec_.hidden, token = tokens_[static_cast<size_t>(row)];
  if (token == kBlank)
    std::fill_n(bits, hidden, uint16_t{0});
  else if (entry.embedding != nullptr)
    entry.embedding->read_row(kernels_, token, bits);
  else
    std::memcpy(bits, weights_.embedding + token * hidden * 2, static_cast<size_t>(hidden) * 2);
  float* const pair = pairs_.data() + row * 2 * hidden;
  float* const residual = residual_.data() + row * hidden;
  float* const embedded = pair + (entry.hidden_first ? hidden : 0);
  float* const normed = pair + (entry.hidden_first ? 0 : hidden);
  widen(bits, hidden, embedded);
  norm(entry.embedding_norm, embedded, hidden, embedded);
  if (inputs_of_pairs_.are_recycled)
    widen(inputs_of_pairs_.values.data() + row * hidden, hidden, residual);
  else if (entry.fc == nullptr)
    enter_feature(row, residual);
  norm(entry.hidden_norm, residual, hidden, normed);
  if (entry.keeps_normed) std::copy_n(normed, hidden, residual);
}

void Decoder::enter_pairs(Team& team) {
  const HeadEntry& entry = *weights_.entry;
  const int64_t hidden = spec_.hidden;
  const auto keep = [&](int64_t first, int64_t count, const float* result, int64_t stride) {
    keep_outputs(first, count, result, stride, 0, hidden, residual_.data(), hidden);
  };
  if (!inputs_of_pairs_.are_recycled && entry.fc != nullptr) {
    const auto features = [&](int64_t row, float* scratch) { return enter_feature(row, scratch); };
    apply(team, "features", *entry.fc, features, keep);
  }
  team.stage("pairs");
  team.share(rows_, 1, [&](int64_t first, int64_t last) {
    std::vector<uint16_t> bits(static_cast<size_t>(hidden));
    for (int64_t row = first; row < last; ++row) make_pair(row, bits.data());
  });
  if (entry.projection == nullptr) return;
  apply(team, "projection", *entry.projection, rows_at(pairs_.data(), 2 * hidden), keep);
}

}  // namespace specqd
