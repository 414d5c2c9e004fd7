// Multi-head latent attention, absorbed: all heads attend to one latent row a position, and small
// products of each head lie before and behind attention (docs/design.md).
#include <algorithm>
#include <cstring>

#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr float kNormEpsilon = 1e-6f;  // of latents; fixed in every model

}  // namespace

size_t bytes_of(const LatentWeights& weights, Precision precision) {
  return bytes_of(*weights.keys, precision) + bytes_of(*weights.values, precision) +
         (weights.queries != nullptr ? bytes_of(*weights.queries, precision) : 0);
}

int64_t Decoder::latent_tiles(const LatentWeights& weights) {
  const int64_t queries = weights.queries != nullptr ? weights.queries->matrix().tiles : 0;
  return std::max({queries, weights.keys->matrix().tiles, weights.values->matrix().tiles});
}

size_t Decoder::reserve_latents() {
  int64_t width = 0, rank = 0;
  size_t bytes = 0;
  for (const LayerWeights& layer : weights_.layers) {
    if (layer.latent == nullptr) continue;
    const LatentWeights& latent = *layer.latent;
    const AttentionShape& shape = attention_of(layer).shape();
    const int64_t turned = shape.head_dim - shape.value_dim;
    width =
        std::max({width, shape.heads * (turned + latent.keys->columns()), latent.values->rows()});
    rank = std::max(rank, std::ssize(latent.query_norm.weight));
    const int64_t tiles = std::max(latent.keys->matrix().tiles, latent.values->matrix().tiles);
    bytes = std::max(
        bytes, static_cast<size_t>(max_rows_ * shape.heads) *
                   std::max(kernels_.exact_row_bytes(tiles), kernels_.draft_row_bytes(tiles)));
  }
  by_head_.resize(static_cast<size_t>(max_rows_ * width));
  query_latents_.resize(static_cast<size_t>(max_rows_ * rank));
  return bytes;
}

template <class Take>
void Decoder::multiply_heads(Team& team, const char* stage, const PackedWeight& weight,
                             int64_t heads, const PreparedRows& x, const Take& take) {
  team.stage(stage);
  const PackedMatrix& matrix = weight.matrix(team.node());
  float* const out = scratch_[static_cast<size_t>(team.thread())].products();
  const auto product =
      precision_ == Precision::kFp4 ? kernels_.draft_product : kernels_.exact_product;
  const int64_t panels = matrix.panels / heads;
  const size_t panel_bytes = bytes_of(weight, precision_) / static_cast<size_t>(matrix.panels);
  const int64_t grain = panels_of_claim(matrix.panels, panel_bytes, rows_, team.threads());
  team.share_by_node(matrix.panels, grain, panels_of(team, matrix.panels),
                     [&](int64_t first, int64_t last) {
                       for (int64_t to; first < last; first = to) {
                         const int64_t head = first / panels;
                         to = std::min(last, (head + 1) * panels);
                         const PreparedRows rows{x.data + static_cast<size_t>(head) * x.stride,
                                                 x.stride * static_cast<size_t>(heads), rows_};
                         const int64_t stride = (to - first) * kPanel;
                         product(matrix, first, to, rows, out, stride);
                         team.tally(matrix.panels, first, to, panel_bytes);
                         take(head, first % panels * kPanel, stride, out, stride);
                       }
                     });
}

// Leaves each head's query, [part with positions; what it asks of the latent], and the key.
void Decoder::project_latents(Team& team, const LayerWeights& layer) {
  const LatentWeights& latent = *layer.latent;
  const AttentionShape& shape = attention_of(layer).shape();
  const int64_t heads = shape.heads, dim = shape.head_dim, rank = shape.value_dim;
  const int64_t outputs = shape.outputs(), turned = dim - rank;
  const int64_t head_query = turned + latent.keys->columns(), queries = heads * head_query;
  const bool has_rank = latent.queries != nullptr;
  const PackedWeight& first_product = *layer.query_key_value;
  const int64_t before = first_product.rows() - dim;
  float* const lowest = has_rank ? query_latents_.data() : by_head_.data();
  apply(team, "queries, keys, values", first_product, attention_inputs(layer),
        [&](int64_t first, int64_t count, const float* result, int64_t stride) {
          keep_outputs(first, count, result, stride, 0, before, lowest, before);
          keep_outputs(first, count, result, stride, before, before + dim,
                       heads_.data() + shape.queries(), outputs);
        });
  if (has_rank) {
    const auto normed = [&](int64_t row, float* scratch) -> const float* {
      kernels_.rms_norm(lowest + row * before, latent.query_norm.weight.data(), before,
                        kNormEpsilon, 0.0f, scratch);
      return scratch;
    };
    apply(team, "queries", *latent.queries, normed,
          [&](int64_t first, int64_t count, const float* result, int64_t stride) {
            keep_outputs(first, count, result, stride, 0, queries, by_head_.data(), queries);
          });
  }
  const auto plain = rows_at(by_head_.data() + turned, head_query);
  multiply_heads(
      team, "queries of latents", *latent.keys, heads,
      prepare(team, precision_, rows_ * heads, *latent.keys, plain),
      [&](int64_t head, int64_t first, int64_t count, const float* result, int64_t stride) {
        for (int64_t row = 0; row < rows_; ++row) {
          float* const query = heads_.data() + row * outputs + head * dim;
          std::memcpy(query + turned + first, result + row * stride,
                      static_cast<size_t>(count) * sizeof(float));
          if (first == 0)
            std::memcpy(query, by_head_.data() + (row * heads + head) * head_query,
                        static_cast<size_t>(turned) * sizeof(float));
        }
      });
}

// Norms the latent behind a key's part with positions.
void Decoder::norm_latent(const LatentWeights& weights, float* latent) const {
  kernels_.rms_norm(latent, weights.norm.weight.data(), std::ssize(weights.norm.weight),
                    kNormEpsilon, 0.0f, latent);
}

// Leaves each head's outputs of the latents that attention has summed for it.
void Decoder::expand_latents(Team& team, const LayerWeights& layer) {
  const PackedWeight& values = *layer.latent->values;
  const AttentionShape& shape = attention_of(layer).shape();
  const int64_t heads = shape.heads, each = values.rows() / heads, width = values.rows();
  const auto summed = [&](int64_t i, float*) -> const float* {
    return heads_.data() + i / heads * shape.outputs() + i % heads * shape.head_dim;
  };
  multiply_heads(
      team, "values of latents", values, heads,
      prepare(team, precision_, rows_ * heads, values, summed),
      [&](int64_t head, int64_t first, int64_t count, const float* result, int64_t stride) {
        for (int64_t row = 0; row < rows_; ++row)
          std::memcpy(by_head_.data() + row * width + head * each + first, result + row * stride,
                      static_cast<size_t>(count) * sizeof(float));
      });
}

}  // namespace specqd
