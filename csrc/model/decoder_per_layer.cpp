// Per-layer embeddings: each layer adds a part of its own of a wide embedding of the token.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/bf16.h"
#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

const Norm kNoNorm;
const Vector kNoBias;

}  // namespace

// Makes the per-layer embeddings of all rows from the residual stream, which holds the embeddings.
void Decoder::embed_per_layer(Team& team) {
  const PackedWeight& projection = *weights_.per_layer.projection;
  const int64_t outputs = projection.rows();
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(spec_.hidden));
  apply(team, "per-layer embedding", projection, normed(kNoNorm),
        [&](int64_t first, int64_t count, float* result, int64_t stride) {
          const int64_t kept = std::min(count, outputs - first);
          for (int64_t row = 0; row < rows_; ++row) {
            const float* const from = result + row * stride;
            float* const out = per_layer_.data() + row * outputs + first;
            for (int64_t i = 0; i < kept; ++i) out[i] = from[i] * scale;
          }
        });
  team.stage("per-layer embedding");
  team.share(rows_, 1, [&](int64_t row, int64_t) { finish_per_layer_row(row); });
}

// Norms a row's projection by layer, and adds the row of the table.
void Decoder::finish_per_layer_row(int64_t row) {
  const PerLayerEmbedding& weights = weights_.per_layer;
  const int64_t width = weights.width(), outputs = weights.projection->rows();
  const float scale = __builtin_sqrtf(static_cast<float>(width));
  const float half = 1.0f / __builtin_sqrtf(2.0f);
  const int64_t token = tokens_[static_cast<size_t>(row)];
  std::vector<uint16_t> bits(static_cast<size_t>(width));
  std::vector<float> entry(static_cast<size_t>(width));
  for (int64_t first = 0; first < outputs; first += width) {
    float* const out = per_layer_.data() + row * outputs + first;
    norm(weights.norm, out, width, out);
    std::memcpy(bits.data(), weights.table + (token * outputs + first) * 2,
                static_cast<size_t>(width) * 2);
    std::ranges::transform(bits, entry.begin(), bf16_to_float);
    kernels_.scale(entry.data(), scale, width);
    kernels_.add(out, entry.data(), width);
    kernels_.scale(out, half, width);
  }
}

// Adds a layer's part of the per-layer embedding, gated by the residual stream.
void Decoder::add_per_layer(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const PerLayerInput& weights = layer.per_layer;
  const int64_t width = weights_.per_layer.width();
  const int64_t outputs = weights_.per_layer.projection->rows();
  apply(team, "per-layer gate", *weights.gate, normed(kNoNorm),
        [&](int64_t first, int64_t count, const float* result, int64_t stride) {
          const int64_t kept = std::min(count, width - first);
          for (int64_t row = 0; row < rows_; ++row)
            activate_(result + row * stride,
                      per_layer_.data() + row * outputs + layer_index * width + first, kept,
                      hidden_.data() + row * width + first);
        });
  apply(team, "per-layer projection", *weights.projection, rows_at(hidden_.data(), width),
        put_output(kNoBias, Destination::kAside));
  add_aside(team, weights.post_norm, layer.output_scale);
}

}  // namespace specqd
