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

void Decoder::forward_pairs(Precision precision, const KvCache& cache, HeadInputs inputs,
                            std::span<const int32_t> tokens, std::span<const ForwardRows> sequences,
                            HeadUse head) {
  inputs_of_pairs_ = inputs;
  forward(precision, cache, tokens, sequences, head);
  if (inputs.are_recycled) moved_bytes_ -= bytes_of(*weights_.entry->fc, precision);
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

void Decoder::enter_pairs(Team& team) {
  const HeadEntry& entry = *weights_.entry;
  const int64_t hidden = spec_.hidden, columns = entry.fc->columns();
  const uint16_t* const values = inputs_of_pairs_.values.data();
  if (!inputs_of_pairs_.are_recycled) {
    const auto features = [&](int64_t row, float* scratch) -> const float* {
      widen(values + row * columns, columns, scratch);
      const int64_t taps = std::ssize(entry.tap_norms), width = taps > 0 ? columns / taps : 0;
      for (int64_t i = 0; i < taps; ++i)
        norm(entry.tap_norms[static_cast<size_t>(i)], scratch + i * width, width,
             scratch + i * width);
      if (entry.features_norm.exists()) norm(entry.features_norm, scratch, columns, scratch);
      return scratch;
    };
    multiply(team, "features", precision_, *entry.fc,
             prepare(team, precision_, rows_, *entry.fc, features),
             [&](int64_t first, int64_t count, const float* result, int64_t stride) {
               const auto kept = static_cast<size_t>(std::min(count, hidden - first));
               for (int64_t row = 0; row < rows_; ++row)
                 std::memcpy(residual_.data() + row * hidden + first, result + row * stride,
                             kept * sizeof(float));
             });
  }
  team.stage("pairs");
  team.share(rows_, 1, [&](int64_t first, int64_t last) {
    std::vector<uint16_t> bits(static_cast<size_t>(hidden));
    for (int64_t row = first; row < last; ++row) {
      const int64_t token = tokens_[static_cast<size_t>(row)];
      if (entry.embedding != nullptr)
        entry.embedding->read_row(kernels_, token, bits.data());
      else
        std::memcpy(bits.data(), weights_.embedding + token * hidden * 2,
                    static_cast<size_t>(hidden) * 2);
      float* const pair = pairs_.data() + row * 2 * hidden;
      float* const residual = residual_.data() + row * hidden;
      widen(bits.data(), hidden, pair);
      norm(entry.embedding_norm, pair, hidden, pair);
      if (inputs_of_pairs_.are_recycled) widen(values + row * hidden, hidden, residual);
      norm(entry.hidden_norm, residual, hidden, pair + hidden);
      if (entry.keeps_normed) std::copy_n(pair + hidden, hidden, residual);
    }
  });
}

}  // namespace specqd
