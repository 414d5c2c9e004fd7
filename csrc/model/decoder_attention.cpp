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

void Decoder::norm_heads(const Norm& norm, int64_t dim, float* values, int64_t first_head,
                         int64_t count) const {
  if (!norm.exists() || spec_.norms_whole_rows) return;
  const bool is_shared = std::ssize(norm.weight) == dim;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t* const weight = norm.weight.data() + (is_shared ? 0 : (first_head + i) * dim);
    this->norm(weight, nullptr, values + i * dim, dim, values + i * dim);
  }
}

void Decoder::norm_whole_rows(Team& team, const LayerWeights& layer) {
  const AttentionShape& shape = attention_of(layer).shape();
  team.stage("norms of rows");
  team.share(rows_, 1, [&](int64_t row, int64_t) {
    float* const values = heads_.data() + row * shape.outputs();
    norm(layer.query_norm, values, shape.queries(), values);
    norm(layer.key_norm, values + shape.queries(), shape.keys(), values + shape.queries());
  });
}

const Decoder::Rope* Decoder::rope_of(const LayerWeights& layer) const {
  return layer.rope < 0 ? nullptr : &ropes_[static_cast<size_t>(layer.rope)];
}

void Decoder::rotate(const Rope* rope, float* values, int64_t position) const {
  if (rope == nullptr) return;
  const int64_t half = rope->half(), at = position * half;
  kernels_.rotate(values, rope->cosines.data() + at, rope->sines.data() + at, half);
}

// Norms, rotates and prepares the queries of one key-value head's group.
void Decoder::write_queries(const LayerWeights& layer, int64_t kv_head, int64_t row,
                            int64_t position) {
  Attention& attention = attention_of(layer);
  const AttentionShape& shape = attention.shape();
  const int64_t dim = shape.head_dim, first = kv_head * shape.group();
  const Rope* const rope = rope_of(layer);
  float* const queries = heads_.data() + row * shape.outputs() + first * dim;
  norm_heads(layer.query_norm, dim, queries, first, shape.group());
  const float scale = rope == nullptr ? 1.0f : rope_query_scale(rope->spec, position);
  for (int64_t i = 0; i < shape.group(); ++i) {
    rotate(rope, queries + i * dim, position);
    if (scale != 1.0f) kernels_.scale(queries + i * dim, scale, dim);
    kernels_.prepare_exact(queries + i * dim, dim, shape.key_tiles(),
                           attention.query(row, first + i));
  }
}

// Norms and rotates a key, norms its value, and writes both into the cache.
void Decoder::write_key_value(const LayerWeights& layer, int64_t kv_head, int64_t row,
                              int64_t position, const KvView& view) {
  const Attention& attention = attention_of(layer);
  const AttentionShape& shape = attention.shape();
  const int64_t dim = shape.head_dim;
  float* const key = heads_.data() + row * shape.outputs() + shape.queries() + kv_head * dim;
  const int64_t value_dim = shape.value_dim, before = dim - value_dim;
  float* const value =
      heads_.data() + row * shape.outputs() + shape.queries() + shape.keys() + kv_head * value_dim;
  if (layer.latent != nullptr) norm_latent(*layer.latent, key + before);
  if (layer.values_are_keys)
    std::memcpy(value, key + before, static_cast<size_t>(value_dim) * sizeof(float));
  norm_heads(layer.key_norm, dim, key, kv_head, 1);
  norm_heads(layer.value_norm, value_dim, value, kv_head, 1);
  rotate(rope_of(layer), key, position);
  attention.write(view, position, key, value);
}

// Prepares the queries of one key-value head's group, and writes its keys and values, unless the
// layer reads those of another.
void Decoder::write_heads(int64_t layer_index, int64_t kv_head, const Attention::PageRows& part) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const SequenceRows& rows = sequences_[static_cast<size_t>(part.sequence)];
  const int64_t cached = cached_[static_cast<size_t>(layer_index)];
  const KvView view = cache_->view(rows.sequence, cached, kv_head);
  for (int64_t row = part.first; row < part.last; ++row) {
    const int64_t position = rows.start + row - rows.first_row;
    write_queries(layer, kv_head, row, position);
    if (layer.kv_layer >= 0) continue;
    write_key_value(layer, kv_head, row, position, view);
    if (row == rows.first_row + rows.count - 1) attention_of(layer).clear_after(view, position);
  }
}

// Writes the outputs of attention over the queries.
void Decoder::merge_head(const LayerWeights& layer, int64_t head, const Attention::PageRows& part) {
  Attention& attention = attention_of(layer);
  const AttentionShape& shape = attention.shape();
  const int64_t dim = shape.head_dim;
  for (int64_t row = part.first; row < part.last; ++row) {
    float* const out = heads_.data() + row * shape.outputs() + head * dim;
    attention.merge(row, head, layer.sinks, out);
    if (spec_.gates_attention)
      kernels_.sigmoid_gate(gates_.data() + row * shape.queries() + head * dim, dim, out);
  }
}

void Decoder::keep_outputs(int64_t first, int64_t count, const float* result, int64_t stride,
                           int64_t from, int64_t to, float* out, int64_t out_stride) const {
  const int64_t begin = std::max(first, from), end = std::min(first + count, to);
  for (int64_t row = 0; begin < end && row < rows_; ++row)
    std::memcpy(out + row * out_stride + begin - from, result + row * stride + begin - first,
                static_cast<size_t>(end - begin) * sizeof(float));
}

// Multiplies queries, keys and values of all rows.
void Decoder::project(Team& team, const LayerWeights& layer) {
  const AttentionShape& shape = attention_of(layer).shape();
  const int64_t outputs = shape.outputs(), queries = shape.queries();
  const PackedWeight& qkv = *layer.query_key_value;
  apply(team, "queries, keys, values", qkv, attention_inputs(layer),
        [&](int64_t first, int64_t count, const float* result, int64_t stride) {
          if (spec_.gates_attention)
            keep_outputs(first, count, result, stride, outputs, outputs + queries, gates_.data(),
                         queries);
          const int64_t kept = std::min(count, std::min(qkv.rows(), outputs) - first);
          if (kept <= 0) return;
          for (int64_t row = 0; row < rows_; ++row) {
            float* const out = heads_.data() + row * outputs + first;
            std::memcpy(out, result + row * stride, static_cast<size_t>(kept) * sizeof(float));
            if (!layer.query_key_value_bias.empty())
              kernels_.add_bf16(out, layer.query_key_value_bias.data() + first, kept);
          }
        });
  if (spec_.norms_whole_rows) norm_whole_rows(team, layer);
}

void Decoder::attend(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  layer.latent != nullptr ? project_latents(team, layer) : project(team, layer);
  share_attention(team, layer_index);
  if (layer.latent != nullptr) expand_latents(team, layer);
  const int64_t width =
      layer.latent != nullptr ? layer.output->columns() : attention_of(layer).shape().outputs();
  const float* const outputs = layer.latent != nullptr ? by_head_.data() : heads_.data();
  const bool is_aside = spec_.is_parallel || layer.attention_post_norm.exists();
  apply(team, "output", *layer.output, rows_at(outputs, width),
        put_output(layer.output_bias, is_aside ? Destination::kAside : Destination::kResidual));
  if (layer.attention_post_norm.exists()) add_aside(team, layer.attention_post_norm);
}

void Decoder::share_attention(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  Attention& attention = attention_of(layer);
  const int64_t passes = attention.passes(), kv_heads = attention.shape().kv_heads;
  const int64_t group = attention.shape().group();
  const auto parts = attention.page_rows();
  const auto run = [&](int64_t first, int64_t last) {
    attention.run(*cache_, cached_[static_cast<size_t>(layer_index)], layer.window, first, last,
                  team.thread());
  };
  // Keys and values lie on the node whose threads write and read their head, if all nodes get
  // equally many for their threads; else where they were first written.
  bool are_divided = true;
  for (int node = 1; node < team.nodes(); ++node)
    are_divided = are_divided && team.is_even(node, kv_heads);
  const auto share_heads = [&](int64_t items, int64_t grain, const auto& body) {
    const auto bound = [&](int node) { return team.part(node, kv_heads) * (items / kv_heads); };
    if (are_divided)
      team.share_by_node(items, grain, bound, body);
    else
      team.share(items, grain, body);
  };
  team.stage("attention");
  if (attention.is_simple() && kv_heads >= team.threads()) {
    share_heads(kv_heads, 1, [&](int64_t kv_head, int64_t) {
      for (const auto& part : parts) write_heads(layer_index, kv_head, part);
      run(kv_head * passes, (kv_head + 1) * passes);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (const auto& part : parts) merge_head(layer, head, part);
    });
    return;
  }
  // One thread writes all rows of a page, because the last row of a block clears the rows after it.
  const int64_t count = std::ssize(parts), items = passes * kv_heads;
  share_heads(kv_heads * count, 1, [&](int64_t i, int64_t) {
    write_heads(layer_index, i / count, parts[static_cast<size_t>(i % count)]);
  });
  team.stage("attention");
  share_heads(items, std::max<int64_t>(items / (team.threads() * kAttentionClaimsPerThread), 1),
              run);
  team.stage("attention");
  const int64_t merges = attention.shape().heads * count;
  team.share(merges, std::max<int64_t>(merges / (team.threads() * kClaimsPerThread), 1),
             [&](int64_t first, int64_t last) {
               for (int64_t i = first; i < last; ++i)
                 merge_head(layer, i / count, parts[static_cast<size_t>(i % count)]);
             });
}

}  // namespace specqd
