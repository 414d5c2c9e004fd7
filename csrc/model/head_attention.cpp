#include "model/head_attention.h"

#include <algorithm>
#include <cstring>

#include "model/products.h"

namespace specqd {
namespace {

constexpr int64_t kClaimsOfPasses = 32;      // per thread
constexpr int64_t kClaimsOfMerges = 4;       // per thread
constexpr float kLatentNormEpsilon = 1e-6f;  // the same in every model

// Shares items among threads, the same number for each key-value head. If the heads divide evenly
// among the nodes' threads, a node's threads write and read the same heads in every forward, so
// keys and values are on that node. Otherwise they are on the node where they were first written.
template <class Body>
void share_heads(Team& team, int64_t kv_heads, int64_t items, int64_t grain, const Body& body) {
  bool are_divided = true;
  for (int node = 1; node < team.nodes(); ++node)
    are_divided = are_divided && team.is_even(node, kv_heads);
  const auto bound = [&](int node) { return team.part(node, kv_heads) * (items / kv_heads); };
  if (are_divided)
    team.share_by_node(items, EqualRanges{grain}, bound, body);
  else
    team.share(items, grain, body);
}

int64_t gates_per_head(AttentionGates gates, const AttentionShape& shape) {
  switch (gates) {
    case AttentionGates::kHeads:
      return 1;
    case AttentionGates::kValues:
      return shape.head_dim;
    case AttentionGates::kNone:
      break;
  }
  return 0;
}

}  // namespace

HeadAttention::HeadAttention(const LayerWeights& layer, const AttentionPlace& place,
                             const Traits& traits, const std::vector<RopeTable>& ropes)
    : traits_(traits),
      shape_(traits.spec.attentions.at(static_cast<size_t>(layer.attention))),
      rope_(layer.rope < 0 ? nullptr : &ropes.at(static_cast<size_t>(layer.rope))),
      place_(place),
      writes_cache_(layer.kv_layer < 0),
      values_are_keys_(layer.values_are_keys),
      gates_per_head_(gates_per_head(traits.spec.attention_gates, shape_)),
      query_norm_(layer.query_norm),
      key_norm_(layer.key_norm),
      value_norm_(layer.value_norm),
      latent_norm_(layer.latent != nullptr ? layer.latent->norm : Norm{}),
      sinks_(layer.sinks) {}

int64_t HeadAttention::cache_words(std::span<const SequenceRows> sequences) const {
  const KvLayer layer{shape_.kv_heads, shape_.head_dim, shape_.value_dim};
  const int64_t strip_words = layer.page_words() / shape_.kv_heads;  // of a page
  int64_t words = 0;
  for (const SequenceRows& rows : sequences) {
    const int64_t first =
        std::max<int64_t>(place_.reach.window > 0 ? rows.start + 1 - place_.reach.window : 0, 0);
    const int64_t last = rows.start + rows.count;
    const int64_t positions = (last + kBlock - 1) / kBlock * kBlock - first / kBlock * kBlock;
    words += positions * layer.page_words() / kPagePositions;
    if (place_.first_strip == kNoStrip || rows.choice == nullptr) continue;
    for (int64_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head)
      words -= rows.choice->skipped_pages(place_.first_strip + kv_head) * strip_words;
  }
  return words;
}

// Normalises heads, unless the norm is one of whole rows. A norm has one weight for all heads, or
// one per head.
void HeadAttention::norm_heads(const Norm& norm, int64_t dim, float* values, int64_t first_head,
                               int64_t count) const {
  if (!norm.exists() || traits_.spec.norms_whole_rows) return;
  const bool is_shared = std::ssize(norm.weight) == dim;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t* const weight = norm.weight.data() + (is_shared ? 0 : (first_head + i) * dim);
    traits_.norm(weight, nullptr, values + i * dim, dim, values + i * dim);
  }
}

void HeadAttention::norm_whole_rows(Team& team, const Run& run) const {
  team.stage("norms of rows");
  team.share(run.batch.rows, 1, [&](int64_t row, int64_t) {
    float* const values = run.heads + row * shape_.outputs();
    traits_.norm(query_norm_, values, shape_.queries(), values);
    traits_.norm(key_norm_, values + shape_.queries(), shape_.keys(), values + shape_.queries());
  });
}

// Normalises, rotates and prepares the queries of one key-value head's group.
void HeadAttention::write_queries(const Run& run, int64_t kv_head, int64_t row,
                                  int64_t position) const {
  const Kernels& kernels = traits_.kernels;
  const int64_t dim = shape_.head_dim, first = kv_head * shape_.group();
  float* const queries = run.heads + row * shape_.outputs() + first * dim;
  const bool norms_later = traits_.spec.norms_after_rotation;
  if (!norms_later) norm_heads(query_norm_, dim, queries, first, shape_.group());
  const float scale = rope_ == nullptr ? 1.0f : rope_->query_scale(position);
  for (int64_t i = 0; i < shape_.group(); ++i) {
    float* const query = queries + i * dim;
    if (rope_ != nullptr) rope_->rotate(kernels, query, position);
    if (norms_later) norm_heads(query_norm_, dim, query, first + i, 1);
    if (scale != 1.0f) kernels.scale(query, scale, dim);
    kernels.prepare_exact(query, dim, shape_.key_tiles(), run.attention.query(row, first + i));
  }
}

// Normalises and rotates a key, normalises its value, and writes both into the cache.
void HeadAttention::write_key_value(const Run& run, int64_t kv_head, int64_t row, int64_t position,
                                    const KvView& view) const {
  const Kernels& kernels = traits_.kernels;
  const int64_t dim = shape_.head_dim, value_dim = shape_.value_dim, before = dim - value_dim;
  float* const values_of_row = run.heads + row * shape_.outputs() + shape_.queries();
  float* const key = values_of_row + kv_head * dim;
  float* const value = values_of_row + shape_.keys() + kv_head * value_dim;
  if (latent_norm_.exists())
    kernels.rms_norm(key + before, latent_norm_.weight.data(), std::ssize(latent_norm_.weight),
                     kLatentNormEpsilon, 0.0f, key + before);
  if (values_are_keys_)
    std::memcpy(value, key + before, static_cast<size_t>(value_dim) * sizeof(float));
  const bool norms_later = traits_.spec.norms_after_rotation;
  if (!norms_later) norm_heads(key_norm_, dim, key, kv_head, 1);
  norm_heads(value_norm_, value_dim, value, kv_head, 1);
  if (rope_ != nullptr) rope_->rotate(kernels, key, position);
  if (norms_later) norm_heads(key_norm_, dim, key, kv_head, 1);
  run.attention.write(view, position, key, value);
}

// Prepares the queries of one key-value head's group, and writes its keys and values, unless the
// layer reads those of another.
void HeadAttention::write_heads(const Run& run, int64_t kv_head,
                                const PagedAttention::PageRows& part) const {
  const SequenceRows& rows = run.batch.sequences[static_cast<size_t>(part.sequence)];
  const KvView view = run.batch.cache->view(rows.sequence, place_.cache_layer, kv_head);
  for (int64_t row = part.first; row < part.last; ++row) {
    const int64_t position = rows.start + row - rows.first_row;
    if (run.has_queries) write_queries(run, kv_head, row, position);
    if (!writes_cache_) continue;
    write_key_value(run, kv_head, row, position, view);
    if (row == rows.first_row + rows.count - 1) run.attention.clear_after(view, position);
  }
}

// Multiplies the outputs of one head by the sigmoids of its gates.
void HeadAttention::apply_gates(const float* gates, float* out) const {
  const Kernels& kernels = traits_.kernels;
  if (gates_per_head_ > 1) {
    kernels.sigmoid_gate(gates, shape_.head_dim, out);
    return;
  }
  float factor = 1.0f;
  kernels.sigmoid_gate(gates, 1, &factor);
  kernels.scale(out, factor, shape_.head_dim);
}

// Replaces the queries by the outputs of attention, as far as the wave has them.
void HeadAttention::merge_head(const Run& run, int64_t wave, int64_t head,
                               const PagedAttention::PageRows& part) const {
  const int64_t dim = shape_.head_dim;
  const int64_t strip =
      place_.first_strip < 0 ? kNoStrip : place_.first_strip + head / shape_.group();
  for (int64_t row = part.first; row < part.last; ++row) {
    float* const out = run.heads + row * shape_.outputs() + head * dim;
    const bool is_whole = run.attention.merge(
        wave, row, head, sinks_, out, run.batch.page_weights_of(strip, row, head % shape_.group()));
    if (is_whole && run.gates != nullptr)
      apply_gates(run.gates + row * num_gates() + head * gates_per_head_, out);
  }
}

// One thread writes all rows of a page, because the last row of a block clears the rows after it.
void HeadAttention::write_all(Team& team, const Run& run) const {
  const auto parts = run.attention.page_rows();
  const int64_t count = std::ssize(parts);
  share_heads(team, shape_.kv_heads, shape_.kv_heads * count, 1, [&](int64_t i, int64_t) {
    write_heads(run, i / count, parts[static_cast<size_t>(i % count)]);
  });
}

void HeadAttention::write_cache(Team& team, Batch& batch, float* heads) const {
  const Run run{batch, batch.attentions[place_.kind], heads, nullptr, false};
  if (traits_.spec.norms_whole_rows) norm_whole_rows(team, run);
  team.stage("keys and values of the context");
  write_all(team, run);
}

void HeadAttention::run(Team& team, Batch& batch, float* heads, const float* gates) const {
  PagedAttention& attention = batch.attentions[place_.kind];
  const Run run{batch, attention, heads, gates};
  if (traits_.spec.norms_whole_rows) norm_whole_rows(team, run);
  const int64_t kv_heads = shape_.kv_heads, group = shape_.group();
  const auto parts = attention.page_rows();
  const auto attend = [&](int64_t wave, int64_t first, int64_t last) {
    attention.run(*batch.cache, place_, wave, first, last, team.thread());
  };
  team.stage("attention");
  if (attention.is_simple() && kv_heads >= team.threads()) {
    share_heads(team, kv_heads, kv_heads, 1, [&](int64_t kv_head, int64_t) {
      for (const auto& part : parts) write_heads(run, kv_head, part);
      const int64_t passes = attention.passes(0);
      attend(0, kv_head * passes, (kv_head + 1) * passes);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (const auto& part : parts) merge_head(run, 0, head, part);
    });
  } else {
    const int64_t count = std::ssize(parts), merges = shape_.heads * count;
    write_all(team, run);
    for (int64_t wave = 0; wave < attention.waves(); ++wave) {
      const int64_t items = attention.passes(wave) * kv_heads;
      team.stage("attention");
      share_heads(team, kv_heads, items,
                  std::max<int64_t>(items / (team.threads() * kClaimsOfPasses), 1),
                  [&](int64_t first, int64_t last) { attend(wave, first, last); });
      team.stage("attention");
      team.share(merges, std::max<int64_t>(merges / (team.threads() * kClaimsOfMerges), 1),
                 [&](int64_t first, int64_t last) {
                   for (int64_t i = first; i < last; ++i)
                     merge_head(run, wave, i / count, parts[static_cast<size_t>(i % count)]);
                 });
    }
  }
  record(team, batch, "attention", heads, shape_.queries(), shape_.outputs());
}

}  // namespace specqd
