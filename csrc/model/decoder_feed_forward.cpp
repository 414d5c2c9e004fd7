// Feed forwards that every row passes through: a layer's only one, or the shared one beside
// experts.
#include <algorithm>

#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {

// Applies the activation to a range of outputs: alternating panels of gate and up projection, or
// the up projection alone.
void Decoder::activate(const FeedForward& weights, int64_t first, int64_t count, float* result,
                       int64_t stride, int64_t rows, float* out) const {
  const int64_t width = weights.down->columns(), step = spec_.is_gated ? 2 * kPanel : count;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < count; i += step) {
      const int64_t at = spec_.is_gated ? (first + i) / 2 : first;
      const int64_t kept = std::min<int64_t>(spec_.is_gated ? kPanel : count, width - at);
      float* const gate = result + row * stride + i;
      float* const up = spec_.is_gated ? gate + kPanel : nullptr;
      if (!weights.gate_bias.empty()) kernels_.add_bf16(gate, weights.gate_bias.data() + at, kept);
      if (!weights.up_bias.empty()) kernels_.add_bf16(up, weights.up_bias.data() + at, kept);
      activate_(gate, up, kept, out + row * width + at);
    }
}

void Decoder::feed_forward(Team& team, const LayerWeights& layer) {
  if (layer.mixture != nullptr) return mix_experts(team, layer);
  const bool has_norm = layer.feed_forward_post_norm.exists();
  run_feed_forward(team, layer.feed_forward_norm, layer.feed_forwards.front(),
                   has_norm            ? Destination::kAside
                   : spec_.is_parallel ? Destination::kWithAside
                                       : Destination::kResidual);
  const float scale = layer.per_layer.exists() ? 1.0f : layer.output_scale;
  if (has_norm) add_aside(team, layer.feed_forward_post_norm, scale);
}

void Decoder::run_feed_forward(Team& team, const Norm& norm, const FeedForward& weights,
                               Destination destination) {
  const int64_t width = weights.down->columns();
  apply(team, "gate and up", *weights.gate_up, normed(norm),
        [&](int64_t first, int64_t count, float* result, int64_t stride) {
          activate(weights, first, count, result, stride, rows_, hidden_.data());
        });
  apply(team, "down", *weights.down, rows_at(hidden_.data(), width),
        put_output(weights.down_bias, destination));
}

}  // namespace specqd
