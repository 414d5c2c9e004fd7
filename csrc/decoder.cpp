#include "decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bf16.h"

namespace specqd {
namespace {

constexpr int64_t kRowsPreparedByEach = 2;  // up to here a barrier costs more than doing it twice
constexpr int64_t kProductPanels = 16;      // at most, of one claim
constexpr int64_t kManyRows = 64;  // whose products would not stay in the cache with so many
constexpr int64_t kProductPanelsOfManyRows = 4;
constexpr int64_t kClaimsPerThread = 4;
constexpr int64_t kAttentionClaimsPerThread = 32;

AttentionShape attention_shape(const DecoderSpec& spec) {
  return {spec.heads, spec.kv_heads, spec.head_dim};
}

}  // namespace

Decoder::Decoder(DecoderSpec spec, DecoderWeights weights, std::shared_ptr<Pool> pool,
                 const Kernels& kernels, int64_t max_rows)
    : spec_(spec),
      weights_(std::move(weights)),
      pool_(std::move(pool)),
      kernels_(kernels),
      max_rows_(max_rows),
      attention_(attention_shape(spec), kernels, pool_->threads(), max_rows),
      inverse_frequencies_(static_cast<size_t>(spec.head_dim / 2)) {
  attention_factor_ = rope_inverse_frequencies(spec_.rope, inverse_frequencies_);
  bool sees_all = weights_.layers.empty();
  int64_t tiles = 0;
  for (const LayerWeights& layer : weights_.layers) {
    sees_all |= layer.window == 0;
    longest_window_ = std::max(longest_window_, layer.window);
    for (const auto& weight : {layer.query_key_value, layer.output, layer.gate_up, layer.down})
      tiles = std::max(tiles, weight->matrix().tiles);
  }
  if (sees_all) longest_window_ = 0;

  const auto rows = static_cast<size_t>(max_rows);
  const size_t row_bytes =
      std::max(kernels_.exact_row_bytes(tiles), kernels_.draft_row_bytes(tiles));
  const auto width = static_cast<size_t>(
      std::max({spec_.hidden, spec_.feed_forward, spec_.heads * spec_.head_dim}));
  const auto head_outputs =
      static_cast<size_t>((spec_.heads + 2 * spec_.kv_heads) * spec_.head_dim);
  residual_.resize(rows * static_cast<size_t>(spec_.hidden));
  heads_.resize(rows * head_outputs);
  hidden_.resize(rows * static_cast<size_t>(spec_.feed_forward));
  prepared_ = Memory(rows * row_bytes);
  logits_stride_ = weights_.head->matrix().panels * kPanel;
  scratch_.resize(static_cast<size_t>(pool_->threads()));
  for (Scratch& scratch : scratch_) {
    scratch.row.resize(width);
    scratch.product.resize(rows * kProductPanels * kPanel);
    scratch.prepared = Memory(kRowsPreparedByEach * row_bytes);
  }
}

KvShape Decoder::kv_shape() const {
  return {static_cast<int64_t>(weights_.layers.size()), spec_.kv_heads, spec_.head_dim};
}

std::span<const float> Decoder::logits(int64_t row) const {
  return {logits_.data() + row * logits_stride_, static_cast<size_t>(spec_.vocabulary)};
}

size_t Decoder::weight_bytes(Reading reading) const {
  const auto moved = [&](const PackedWeight& weight) {
    return reading == Reading::kDraft ? weight.bytes().draft() : weight.bytes().exact();
  };
  size_t bytes = moved(*weights_.head);
  for (const LayerWeights& layer : weights_.layers)
    bytes += moved(*layer.query_key_value) + moved(*layer.output) + moved(*layer.gate_up) +
             moved(*layer.down);
  return bytes;
}

bool Decoder::has_pages(const KvCache& cache, const ForwardRows& rows) const {
  const int64_t seen =
      longest_window_ > 0 ? std::max<int64_t>(rows.start + 1 - longest_window_, 0) : 0;
  for (int64_t page = seen / kPagePositions; page * kPagePositions < rows.start + rows.count;
       ++page)
    if (!cache.has_page(rows.sequence, page)) return false;
  return true;
}

void Decoder::prepare_positions(std::span<const ForwardRows> sequences) {
  sequences_.clear();
  logit_rows_.clear();
  rows_ = 0;
  int64_t last = 0;
  for (const ForwardRows& part : sequences) {
    sequences_.push_back({part.sequence, part.start, part.count, rows_});
    rows_ += part.count;
    for (int64_t i = part.logits; i > 0; --i) logit_rows_.push_back(rows_ - i);
    last = std::max(last, part.start + part.count);
  }
  attention_.plan(sequences_, longest_window_);
  const size_t needed = logit_rows_.size() * static_cast<size_t>(logits_stride_);
  if (logits_.size() < needed) logits_.resize(needed);
  if (last > angles_) {
    const int64_t half = spec_.head_dim / 2, more = std::max(last, angles_ * 2 + 64);
    cosines_.resize(static_cast<size_t>(more * half));
    sines_.resize(static_cast<size_t>(more * half));
    rope_tables(inverse_frequencies_, attention_factor_, angles_, more - angles_,
                cosines_.data() + angles_ * half, sines_.data() + angles_ * half);
    angles_ = more;
  }
}

void Decoder::forward(Reading reading, const KvCache& cache, std::span<const int32_t> tokens,
                      std::span<const ForwardRows> sequences) {
  reading_ = reading;
  cache_ = &cache;
  tokens_ = tokens;
  prepare_positions(sequences);
  pool_->run([this](Team& team) { run(team); });
}

void Decoder::run(Team& team) {
  embed(team);
  for (int64_t layer = 0; layer < std::ssize(weights_.layers); ++layer) {
    attend(team, layer);
    feed_forward(team, layer);
  }
  finish(team);
}

template <class Make>
PreparedRows Decoder::prepare(Team& team, int64_t rows, const PackedWeight& next,
                              const Make& make) {
  Scratch& scratch = scratch_[static_cast<size_t>(team.thread())];
  const bool is_draft = reading_ == Reading::kDraft;
  const int64_t tiles = next.matrix().tiles;
  const size_t stride =
      is_draft ? kernels_.draft_row_bytes(tiles) : kernels_.exact_row_bytes(tiles);
  const auto fill = [&](uint8_t* data, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* inputs = make(row, scratch.row.data());
      (is_draft ? kernels_.prepare_draft : kernels_.prepare_exact)(
          inputs, next.columns(), tiles, data + static_cast<size_t>(row) * stride);
    }
  };
  if (rows <= kRowsPreparedByEach) {
    fill(scratch.prepared.data(), 0, rows);
    return {scratch.prepared.data(), stride, rows};
  }
  team.share(rows, 1, [&](int64_t first, int64_t last) { fill(prepared_.data(), first, last); });
  return {prepared_.data(), stride, rows};
}

template <class Take>
void Decoder::multiply(Team& team, const PackedWeight& weight, const PreparedRows& x,
                       const Take& take) {
  const PackedMatrix& matrix = weight.matrix();
  float* const out = scratch_[static_cast<size_t>(team.thread())].product.data();
  const auto product =
      reading_ == Reading::kDraft ? kernels_.draft_product : kernels_.exact_product;
  const int64_t fair = matrix.panels / (team.threads() * kClaimsPerThread) / 2 * 2;
  const int64_t most = x.count < kManyRows ? kProductPanels : kProductPanelsOfManyRows;
  const int64_t grain = std::clamp<int64_t>(fair, 2, most);
  team.share(matrix.panels, grain, [&](int64_t first, int64_t last) {
    const int64_t stride = (last - first) * kPanel;
    product(matrix, first, last, x, out, stride);
    take(first * kPanel, stride, out, stride);
  });
}

// Makes a row's inputs: the residual stream under a norm.
auto Decoder::normed(const Vector& weight) const {
  return [this, &weight](int64_t row, float* scratch) -> const float* {
    kernels_.rms_norm(residual_.data() + row * spec_.hidden, weight.data(), spec_.hidden,
                      spec_.norm_epsilon, scratch);
    return scratch;
  };
}

// Takes a product's results: into the residual stream, with a bias where there is one.
auto Decoder::added_to_residual(const Vector& bias) {
  return [this, &bias](int64_t first, int64_t count, const float* result, int64_t stride) {
    const int64_t kept = std::min(count, spec_.hidden - first);
    for (int64_t row = 0; row < rows_; ++row) {
      float* const out = residual_.data() + row * spec_.hidden + first;
      kernels_.add(out, result + row * stride, kept);
      if (!bias.empty()) kernels_.add_bf16(out, bias.data() + first, kept);
    }
  };
}

void Decoder::embed(Team& team) {
  const int64_t hidden = spec_.hidden;
  team.share(rows_, 1, [&](int64_t first, int64_t last) {
    std::vector<uint16_t> bits(static_cast<size_t>(hidden));
    for (int64_t row = first; row < last; ++row) {
      const int64_t token = tokens_[static_cast<size_t>(row)];
      if (weights_.embedding != nullptr)
        std::memcpy(bits.data(), weights_.embedding + token * hidden * 2,
                    static_cast<size_t>(hidden) * 2);
      else
        weights_.head->read_row(kernels_, token, bits.data());
      float* const out = residual_.data() + row * hidden;
      for (int64_t i = 0; i < hidden; ++i) out[i] = bf16_to_float(bits[static_cast<size_t>(i)]);
    }
  });
}

void Decoder::normalize_heads(float* values, int64_t count, const Vector& weight) const {
  if (weight.empty()) return;
  for (int64_t i = 0; i < count; ++i) {
    float* const head = values + i * spec_.head_dim;
    kernels_.rms_norm(head, weight.data(), spec_.head_dim, spec_.norm_epsilon, head);
  }
}

// Norms and rotates the queries and keys of one key-value head's group, and caches what attention
// reads.
void Decoder::write_heads(int64_t layer_index, int64_t kv_head, const Attention::PageRows& part) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const int64_t dim = spec_.head_dim, group = spec_.heads / spec_.kv_heads, half = dim / 2;
  const int64_t outputs = (spec_.heads + 2 * spec_.kv_heads) * dim;
  const int64_t key_tiles = attention_shape(spec_).key_tiles();
  const SequenceRows& rows = sequences_[static_cast<size_t>(part.sequence)];
  const KvView view = cache_->view(rows.sequence, layer_index, kv_head);
  for (int64_t row = part.first; row < part.last; ++row) {
    const int64_t position = rows.start + row - rows.first_row;
    const float* const cosine = cosines_.data() + position * half;
    const float* const sine = sines_.data() + position * half;
    float* const queries = heads_.data() + row * outputs + kv_head * group * dim;
    float* const key = heads_.data() + row * outputs + (spec_.heads + kv_head) * dim;
    const float* const value = key + spec_.kv_heads * dim;
    normalize_heads(queries, group, layer.query_norm);
    normalize_heads(key, 1, layer.key_norm);
    for (int64_t i = 0; i < group; ++i) {
      kernels_.rotate(queries + i * dim, cosine, sine, half);
      kernels_.prepare_exact(queries + i * dim, dim, key_tiles,
                             attention_.query(row, kv_head * group + i));
    }
    kernels_.rotate(key, cosine, sine, half);
    attention_.write(view, position, key, value);
    if (row == rows.first_row + rows.count - 1) attention_.clear_after(view, position);
  }
}

// Puts the outputs of attention where the queries were.
void Decoder::merge_head(int64_t head, const Attention::PageRows& part) {
  const int64_t outputs = (spec_.heads + 2 * spec_.kv_heads) * spec_.head_dim;
  for (int64_t row = part.first; row < part.last; ++row)
    attention_.merge(row, head, heads_.data() + row * outputs + head * spec_.head_dim);
}

void Decoder::attend(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const int64_t dim = spec_.head_dim, outputs = (spec_.heads + 2 * spec_.kv_heads) * dim;
  const PackedWeight& qkv = *layer.query_key_value;
  multiply(team, qkv, prepare(team, rows_, qkv, normed(layer.attention_norm)),
           [&](int64_t first, int64_t count, const float* result, int64_t stride) {
             const int64_t kept = std::min(count, outputs - first);
             for (int64_t row = 0; row < rows_; ++row) {
               float* const out = heads_.data() + row * outputs + first;
               std::memcpy(out, result + row * stride, static_cast<size_t>(kept) * sizeof(float));
               if (!layer.query_key_value_bias.empty())
                 kernels_.add_bf16(out, layer.query_key_value_bias.data() + first, kept);
             }
           });

  share_attention(team, layer_index);
  const auto attended = [&](int64_t row, float*) -> const float* {
    return heads_.data() + row * outputs;
  };
  multiply(team, *layer.output, prepare(team, rows_, *layer.output, attended),
           added_to_residual(layer.output_bias));
}

void Decoder::share_attention(Team& team, int64_t layer_index) {
  const int64_t window = weights_.layers[static_cast<size_t>(layer_index)].window;
  const int64_t passes = attention_.passes(), kv_heads = spec_.kv_heads;
  const int64_t group = spec_.heads / kv_heads;
  const auto parts = attention_.page_rows();
  const auto run = [&](int64_t first, int64_t last) {
    attention_.run(*cache_, layer_index, window, first, last, team.thread());
  };
  if (attention_.is_simple() && kv_heads >= team.threads()) {
    team.share(kv_heads, 1, [&](int64_t kv_head, int64_t) {
      for (const auto& part : parts) write_heads(layer_index, kv_head, part);
      run(kv_head * passes, (kv_head + 1) * passes);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (const auto& part : parts) merge_head(head, part);
    });
    return;
  }
  // The last row of a block clears what follows it, so rows of a page are written by one thread.
  const int64_t count = std::ssize(parts), items = passes * kv_heads;
  team.share(kv_heads * count, 1, [&](int64_t i, int64_t) {
    write_heads(layer_index, i / count, parts[static_cast<size_t>(i % count)]);
  });
  team.share(items, std::max<int64_t>(items / (team.threads() * kAttentionClaimsPerThread), 1),
             run);
  const int64_t merges = spec_.heads * count;
  team.share(merges, std::max<int64_t>(merges / (team.threads() * kClaimsPerThread), 1),
             [&](int64_t first, int64_t last) {
               for (int64_t i = first; i < last; ++i)
                 merge_head(i / count, parts[static_cast<size_t>(i % count)]);
             });
}

void Decoder::feed_forward(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const int64_t width = spec_.feed_forward;
  // Panels alternate: sixteen gates, then the sixteen up projections that they gate.
  multiply(team, *layer.gate_up,
           prepare(team, rows_, *layer.gate_up, normed(layer.feed_forward_norm)),
           [&](int64_t first, int64_t count, float* result, int64_t stride) {
             for (int64_t row = 0; row < rows_; ++row)
               for (int64_t i = 0; i < count; i += 2 * kPanel) {
                 const int64_t at = (first + i) / 2, kept = std::min<int64_t>(kPanel, width - at);
                 float* const gate = result + row * stride + i;
                 float* const up = gate + kPanel;
                 if (!layer.gate_bias.empty())
                   kernels_.add_bf16(gate, layer.gate_bias.data() + at, kept);
                 if (!layer.up_bias.empty()) kernels_.add_bf16(up, layer.up_bias.data() + at, kept);
                 kernels_.silu_times(gate, up, kept, hidden_.data() + row * width + at);
               }
           });

  const auto gated = [&](int64_t row, float*) -> const float* {
    return hidden_.data() + row * width;
  };
  multiply(team, *layer.down, prepare(team, rows_, *layer.down, gated),
           added_to_residual(layer.down_bias));
}

void Decoder::finish(Team& team) {
  const int64_t asked = logit_rows();
  if (asked == 0) return;
  const auto last = normed(weights_.final_norm);
  const auto asked_row = [&](int64_t i, float* scratch) {
    return last(logit_rows_[static_cast<size_t>(i)], scratch);
  };
  multiply(team, *weights_.head, prepare(team, asked, *weights_.head, asked_row),
           [&](int64_t first, int64_t count, const float* result, int64_t stride) {
             for (int64_t i = 0; i < asked; ++i)
               std::memcpy(logits_.data() + i * logits_stride_ + first, result + i * stride,
                           static_cast<size_t>(count) * sizeof(float));
           });
}

}  // namespace specqd
