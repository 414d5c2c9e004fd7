// The attention block of a layer: its products, norms and rotations, and how threads share them.
// attention.cpp computes attention itself.
#include <algorithm>
#include <cstring>

#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr int64_t kAttentionClaimsPerThread = 32;

}  // namespace

void Decoder::norm_heads(const Norm& norm, float* values, int64_t first_head, int64_t count) const {
  if (!norm.exists() || spec_.norms_whole_rows) return;
  const int64_t dim = spec_.head_dim;
  const bool is_shared = std::ssize(norm.weight) == dim;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t* const weight = norm.weight.data() + (is_shared ? 0 : (first_head + i) * dim);
    this->norm(weight, nullptr, values + i * dim, dim, values + i * dim);
  }
}

void Decoder::norm_whole_rows(Team& team, const LayerWeights& layer) {
  const int64_t queries = spec_.heads * spec_.head_dim, keys = spec_.kv_heads * spec_.head_dim;
  team.stage("norms of rows");
  team.share(rows_, 1, [&](int64_t row, int64_t) {
    float* const values = heads_.data() + row * (queries + 2 * keys);
    norm(layer.query_norm, values, queries, values);
    norm(layer.key_norm, values + queries, keys, values + queries);
  });
}

// Norms and rotates the queries and keys of one key-value head's group, prepares the queries, and
// writes keys and values into the cache.
void Decoder::write_heads(int64_t layer_index, int64_t kv_head, const Attention::PageRows& part) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const int64_t dim = spec_.head_dim, group = spec_.heads / spec_.kv_heads;
  const int64_t outputs = (spec_.heads + 2 * spec_.kv_heads) * dim;
  const int64_t key_tiles = attention_.key_tiles();
  const Rope* const rope = layer.rope < 0 ? nullptr : &ropes_[static_cast<size_t>(layer.rope)];
  const auto rotate = [&](float* values, int64_t position) {
    if (rope == nullptr) return;
    const int64_t half = rope->half(), at = position * half;
    kernels_.rotate(values, rope->cosines.data() + at, rope->sines.data() + at, half);
  };
  const SequenceRows& rows = sequences_[static_cast<size_t>(part.sequence)];
  const KvView view =
      cache_->view(rows.sequence, cache_layers_[static_cast<size_t>(layer_index)], kv_head);
  for (int64_t row = part.first; row < part.last; ++row) {
    const int64_t position = rows.start + row - rows.first_row;
    float* const queries = heads_.data() + row * outputs + kv_head * group * dim;
    float* const key = heads_.data() + row * outputs + (spec_.heads + kv_head) * dim;
    const float* const value = key + spec_.kv_heads * dim;
    norm_heads(layer.query_norm, queries, kv_head * group, group);
    norm_heads(layer.key_norm, key, kv_head, 1);
    const float scale = rope == nullptr ? 1.0f : rope_query_scale(rope->spec, position);
    for (int64_t i = 0; i < group; ++i) {
      rotate(queries + i * dim, position);
      if (scale != 1.0f) kernels_.scale(queries + i * dim, scale, dim);
      kernels_.prepare_exact(queries + i * dim, dim, key_tiles,
                             attention_.query(row, kv_head * group + i));
    }
    rotate(key, position);
    attention_.write(view, position, key, value);
    if (row == rows.first_row + rows.count - 1) attention_.clear_after(view, position);
  }
}

// Writes the outputs of attention over the queries.
void Decoder::merge_head(const LayerWeights& layer, int64_t head, const Attention::PageRows& part) {
  const int64_t outputs = (spec_.heads + 2 * spec_.kv_heads) * spec_.head_dim;
  const int64_t dim = spec_.head_dim;
  for (int64_t row = part.first; row < part.last; ++row) {
    float* const out = heads_.data() + row * outputs + head * dim;
    attention_.merge(row, head, layer.sinks, out);
    if (spec_.gates_attention)
      kernels_.sigmoid_gate(gates_.data() + (row * spec_.heads + head) * dim, dim, out);
  }
}

// Keeps the outputs that follow queries, keys and values.
void Decoder::keep_gates(int64_t first, int64_t count, const float* result, int64_t stride) {
  const int64_t width = spec_.heads * spec_.head_dim;
  const int64_t before = width + 2 * spec_.kv_heads * spec_.head_dim;
  const int64_t from = std::max(first, before), to = std::min(first + count, before + width);
  for (int64_t row = 0; from < to && row < rows_; ++row)
    std::memcpy(gates_.data() + row * width + from - before, result + row * stride + from - first,
                static_cast<size_t>(to - from) * sizeof(float));
}

void Decoder::attend(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const int64_t dim = spec_.head_dim, outputs = (spec_.heads + 2 * spec_.kv_heads) * dim;
  const PackedWeight& qkv = *layer.query_key_value;
  multiply(team, "queries, keys, values", precision_, qkv,
           prepare(team, precision_, rows_, qkv, normed(layer.attention_norm)),
           [&](int64_t first, int64_t count, const float* result, int64_t stride) {
             if (spec_.gates_attention) keep_gates(first, count, result, stride);
             const int64_t kept = std::min(count, outputs - first);
             if (kept <= 0) return;
             for (int64_t row = 0; row < rows_; ++row) {
               float* const out = heads_.data() + row * outputs + first;
               std::memcpy(out, result + row * stride, static_cast<size_t>(kept) * sizeof(float));
               if (!layer.query_key_value_bias.empty())
                 kernels_.add_bf16(out, layer.query_key_value_bias.data() + first, kept);
             }
           });

  if (spec_.norms_whole_rows) norm_whole_rows(team, layer);
  share_attention(team, layer_index);
  const auto attended = [&](int64_t row, float*) -> const float* {
    return heads_.data() + row * outputs;
  };
  const bool is_aside = spec_.is_parallel || layer.attention_post_norm.exists();
  multiply(team, "output", precision_, *layer.output,
           prepare(team, precision_, rows_, *layer.output, attended),
           put_output(layer.output_bias, is_aside ? Destination::kAside : Destination::kResidual));
  if (layer.attention_post_norm.exists()) add_aside(team, layer.attention_post_norm);
}

void Decoder::share_attention(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const int64_t passes = attention_.passes(), kv_heads = spec_.kv_heads;
  const int64_t group = spec_.heads / kv_heads;
  const auto parts = attention_.page_rows();
  const auto run = [&](int64_t first, int64_t last) {
    attention_.run(*cache_, cache_layers_[static_cast<size_t>(layer_index)], layer.window, first,
                   last, team.thread());
  };
  team.stage("attention");
  if (attention_.is_simple() && kv_heads >= team.threads()) {
    team.share(kv_heads, 1, [&](int64_t kv_head, int64_t) {
      for (const auto& part : parts) write_heads(layer_index, kv_head, part);
      run(kv_head * passes, (kv_head + 1) * passes);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (const auto& part : parts) merge_head(layer, head, part);
    });
    return;
  }
  // One thread writes all rows of a page, because the last row of a block clears the rows after it.
  const int64_t count = std::ssize(parts), items = passes * kv_heads;
  team.share(kv_heads * count, 1, [&](int64_t i, int64_t) {
    write_heads(layer_index, i / count, parts[static_cast<size_t>(i % count)]);
  });
  team.stage("attention");
  team.share(items, std::max<int64_t>(items / (team.threads() * kAttentionClaimsPerThread), 1),
             run);
  team.stage("attention");
  const int64_t merges = spec_.heads * count;
  team.share(merges, std::max<int64_t>(merges / (team.threads() * kClaimsPerThread), 1),
             [&](int64_t first, int64_t last) {
               for (int64_t i = first; i < last; ++i)
                 merge_head(layer, i / count, parts[static_cast<size_t>(i % count)]);
             });
}

}  // namespace specqd
