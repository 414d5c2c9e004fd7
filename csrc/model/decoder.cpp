#include "model/decoder.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "kernels/bf16.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

auto activation_of(const Kernels& kernels, const DecoderSpec& spec) {
  const bool takes_no_gate =
      spec.activation == Activation::kGelu || spec.activation == Activation::kGeluTanh;
  if (!spec.is_gated && !takes_no_gate)
    throw std::invalid_argument("a feed forward without a gate needs a GELU");
  switch (spec.activation) {
    case Activation::kGelu:
      return kernels.gelu_times;
    case Activation::kGeluTanh:
      return kernels.gelu_tanh_times;
    case Activation::kClampedSwiglu:
      return kernels.clamped_swiglu;
    case Activation::kSilu:
      break;
  }
  return kernels.silu_times;
}

}  // namespace

Decoder::Decoder(DecoderSpec spec, DecoderWeights weights, std::shared_ptr<Pool> pool,
                 const Kernels& kernels, int64_t max_rows)
    : spec_(spec),
      weights_(std::move(weights)),
      pool_(std::move(pool)),
      kernels_(kernels),
      max_rows_(max_rows),
      activate_(activation_of(kernels, spec_)) {
  for (const RopeSpec& rope : spec_.ropes) {
    std::vector<float> frequencies(static_cast<size_t>(rope.dims / 2));
    const float factor = rope_inverse_frequencies(rope, frequencies);
    ropes_.push_back({rope, std::move(frequencies), factor, {}, {}});
  }
  for (const AttentionShape& shape : spec_.attentions)
    attentions_.emplace_back(shape, kernels, pool_->threads(), max_rows);
  place_layers();
  logits_stride_ = weights_.head->matrix().panels * kPanel;
  for (const Precision precision : {Precision::kExact, Precision::kFp4})
    fixed_bytes_[static_cast<size_t>(precision)] = fixed_bytes(precision);
  partial_head_ = std::make_shared<PartialHead>(spec_.vocabulary);
  is_target_ = weights_.entry == nullptr;
  reserve_scratch();
}

// Places the layers in the cache, and finds the longest windows.
void Decoder::place_layers() {
  std::vector<bool> sees_all(spec_.attentions.size(), false);
  longest_windows_.assign(spec_.attentions.size(), 0);
  int64_t recurrent = 0;
  for (const LayerWeights& layer : weights_.layers) {
    if (layer.is_recurrent()) {
      cached_.push_back(recurrent++);
      first_reader_ = std::ssize(cached_);
      continue;
    }
    const auto at = static_cast<size_t>(layer.attention);
    const AttentionShape& shape = spec_.attentions[at];
    sees_all[at] = sees_all[at] || layer.window == 0;
    longest_windows_[at] = std::max(longest_windows_[at], layer.window);
    if (layer.kv_layer >= 0) {
      cached_.push_back(cached_.at(static_cast<size_t>(layer.kv_layer)));
      continue;
    }
    cached_.push_back(std::ssize(kv_shape_.layers));
    kv_shape_.layers.push_back({shape.kv_heads, shape.head_dim, shape.value_dim});
    first_reader_ = std::ssize(cached_);
  }
  for (size_t i = 0; i < sees_all.size(); ++i)
    if (sees_all[i]) longest_windows_[i] = 0;
  const auto [least, most] = std::minmax_element(longest_windows_.begin(), longest_windows_.end());
  longest_window_ = *least > 0 ? *most : 0;
}

void Decoder::reserve_scratch() {
  int64_t tiles = weights_.head->matrix().tiles, router_rows = 0, hidden_width = 0, recurrent = 0;
  for (const LayerWeights& layer : weights_.layers) {
    tiles = std::max({tiles, layer.query_key_value->matrix().tiles, layer.output->matrix().tiles});
    if (layer.is_recurrent()) recurrent = std::max(recurrent, layer.query_key_value->rows());
    const auto reserve = [&](const FeedForward& each, int64_t copies) {
      tiles = std::max({tiles, each.gate_up->matrix().tiles, each.down->matrix().tiles});
      hidden_width = std::max(hidden_width, each.down->columns() * copies);
    };
    for (const FeedForward& each : layer.feed_forwards)
      reserve(each, layer.mixture != nullptr ? spec_.experts_per_token : 1);
    if (layer.latent != nullptr) tiles = std::max(tiles, latent_tiles(*layer.latent));
    if (layer.mixture == nullptr) continue;
    router_rows = std::max(router_rows, layer.mixture->router->rows());
    if (layer.mixture->has_shared()) reserve(layer.mixture->shared, 1);
  }
  if (weights_.per_layer.exists()) {
    tiles = std::max(tiles, weights_.per_layer.projection->matrix().tiles);
    hidden_width = std::max(hidden_width, weights_.per_layer.width());
    for (const LayerWeights& layer : weights_.layers)
      tiles = std::max({tiles, layer.per_layer.gate->matrix().tiles,
                        layer.per_layer.projection->matrix().tiles});
  }
  const auto rows = static_cast<size_t>(max_rows_);
  if (weights_.entry != nullptr) {
    for (const auto& weight : {weights_.entry->fc, weights_.entry->projection})
      if (weight != nullptr) tiles = std::max(tiles, weight->matrix().tiles);
    pairs_.resize(rows * 2 * static_cast<size_t>(spec_.hidden));
  }
  const bool has_experts = router_rows > 0;
  const auto slots = rows * static_cast<size_t>(has_experts ? spec_.experts_per_token : 1);
  const size_t row_bytes =
      std::max(kernels_.exact_row_bytes(tiles), kernels_.draft_row_bytes(tiles));
  int64_t head_outputs = 0;
  for (const AttentionShape& shape : spec_.attentions)
    head_outputs = std::max(head_outputs, shape.outputs());
  residual_.resize(rows * static_cast<size_t>(spec_.hidden));
  heads_.resize(rows * static_cast<size_t>(head_outputs));
  if (spec_.gates_attention) gates_.resize(rows * static_cast<size_t>(head_outputs));
  recurrent_inputs_.resize(rows * static_cast<size_t>(recurrent));
  delta_rates_.resize(rows * static_cast<size_t>(2 * spec_.states.value_heads));
  hidden_.resize(rows * static_cast<size_t>(hidden_width));
  if (weights_.per_layer.exists())
    per_layer_.resize(rows * static_cast<size_t>(weights_.per_layer.projection->rows()));
  aside_.resize((slots + (has_experts ? rows : 0)) * static_cast<size_t>(spec_.hidden));
  prepared_ = Memory(std::max(slots * row_bytes, reserve_latents()));
  scratch_.resize(static_cast<size_t>(pool_->threads()));
  for (Scratch& scratch : scratch_) {
    scratch.row = Memory(static_cast<size_t>(tiles * kBlock) * sizeof(float));
    scratch.product = Memory(rows * kProductPanels * kPanel * sizeof(float));
    scratch.prepared = Memory(kRowsPreparedByEach * row_bytes);
  }
  if (!has_experts) return;
  const int64_t blocks = (router_rows + kBlock - 1) / kBlock;
  router_scores_.resize(rows * static_cast<size_t>(blocks * kBlock));
  choice_scores_.resize(router_scores_.size());
  shared_gates_.resize(rows);
  choices_.resize(slots);
  slot_row_.resize(slots);
  expert_starts_.resize(static_cast<size_t>(router_rows + 1));
  gathered_ = Memory(slots * row_bytes);
}

std::span<const float> Decoder::logits(int64_t row) const {
  return {logits_.data() + row * logits_stride_, static_cast<size_t>(spec_.vocabulary)};
}

size_t bytes_of(const PackedWeight& weight, Precision precision) {
  return precision == Precision::kFp4 ? weight.bytes().draft() : weight.bytes().exact();
}

size_t bytes_of(const FeedForward& weights, Precision precision) {
  return bytes_of(*weights.gate_up, precision) + bytes_of(*weights.down, precision);
}

size_t Decoder::fixed_bytes(Precision precision) const {
  size_t bytes = bytes_of(*weights_.head, precision);
  if (weights_.per_layer.exists()) bytes += bytes_of(*weights_.per_layer.projection, precision);
  if (weights_.entry != nullptr) bytes += entry_bytes(precision);
  for (const LayerWeights& layer : weights_.layers) {
    bytes += bytes_of(*layer.query_key_value, precision) + bytes_of(*layer.output, precision);
    if (layer.delta != nullptr) bytes += bytes_of(*layer.delta->rates, Precision::kExact);
    if (layer.latent != nullptr) bytes += bytes_of(*layer.latent, precision);
    if (layer.mixture == nullptr)
      bytes += bytes_of(layer.feed_forwards.front(), precision);
    else
      bytes += bytes_of(*layer.mixture->router, Precision::kExact);
    if (layer.mixture != nullptr && layer.mixture->has_shared())
      bytes += bytes_of(layer.mixture->shared, precision);
    if (layer.per_layer.exists())
      bytes += bytes_of(*layer.per_layer.gate, precision) +
               bytes_of(*layer.per_layer.projection, precision);
  }
  return bytes;
}

void Decoder::watch_inputs() {
  static const Mixture kNoMixture;
  static const LatentWeights kNoLatent;
  std::vector<const PackedWeight*> watched;
  for (const LayerWeights& layer : weights_.layers) {
    const FeedForward& first = layer.feed_forwards.front();
    const FeedForward& shared = (layer.mixture ? *layer.mixture : kNoMixture).shared;
    const PerLayerInput& own = layer.per_layer;
    const LatentWeights& latent = layer.latent ? *layer.latent : kNoLatent;
    for (const auto& weight :
         {layer.query_key_value, layer.output, first.gate_up, first.down, shared.gate_up,
          shared.down, own.gate, own.projection, latent.queries, latent.keys, latent.values})
      watched.push_back(weight.get());
  }
  watched.push_back(weights_.per_layer.projection.get());
  watched.push_back(weights_.head.get());
  int64_t rows = std::ssize(aside_) / spec_.hidden;
  if (!by_head_.empty()) rows = std::max(rows, max_rows_ * spec_.attentions.front().heads);
  inputs_ = std::make_unique<InputProducts>(watched, rows);
}

size_t Decoder::weight_bytes(Precision precision) const {
  size_t bytes = fixed_bytes(precision);
  for (const LayerWeights& layer : weights_.layers) {
    if (layer.mixture == nullptr) continue;
    size_t each = 0;
    for (const FeedForward& expert : layer.feed_forwards) each += bytes_of(expert, precision);
    bytes += each * static_cast<size_t>(spec_.experts_per_token) / layer.feed_forwards.size();
  }
  return bytes;
}

size_t Decoder::seen_cache_bytes() const {
  int64_t words = 0;  // times kPagePositions
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    if (weights_.layers[i].is_recurrent()) continue;
    const int64_t window = weights_.layers[i].window;
    int64_t positions = 0;
    for (const SequenceRows& rows :
         static_cast<int64_t>(i) < first_reader_ ? all_sequences_ : sequences_) {
      const int64_t first = std::max<int64_t>(window > 0 ? rows.start + 1 - window : 0, 0);
      const int64_t last = rows.start + rows.count;
      positions += (last + kBlock - 1) / kBlock * kBlock - first / kBlock * kBlock;
    }
    words += positions * kv_shape_.layers[static_cast<size_t>(cached_[i])].page_words();
  }
  return static_cast<size_t>(words / kPagePositions) * sizeof(uint16_t) +
         static_cast<size_t>(state_bytes_);
}

bool Decoder::has_pages(const KvCache& cache, const ForwardRows& rows) const {
  const int64_t seen =
      longest_window_ > 0 ? std::max<int64_t>(rows.start + 1 - longest_window_, 0) : 0;
  for (int64_t page = seen / kPagePositions; page * kPagePositions < rows.start + rows.count;
       ++page)
    if (!cache.has_page(rows.sequence, page)) return false;
  return true;
}

void Decoder::plan_attention() {
  for (size_t i = 0; i < attentions_.size(); ++i)
    attentions_[i].plan(sequences_, longest_windows_[i]);
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
  all_sequences_ = sequences_;
  plan_attention();
  const size_t needed = logit_rows_.size() * static_cast<size_t>(logits_stride_);
  if (logits_.size() < needed) logits_.resize(needed);
  if (last <= angles_) return;
  const int64_t more = std::max(last, angles_ * 2 + 64);
  for (Rope& rope : ropes_) {
    const int64_t half = rope.half();
    rope.cosines.resize(static_cast<size_t>(more * half));
    rope.sines.resize(static_cast<size_t>(more * half));
    rope_tables(rope.inverse_frequencies, rope.factor, angles_, more - angles_,
                rope.cosines.data() + angles_ * half, rope.sines.data() + angles_ * half);
  }
  angles_ = more;
}

void Decoder::forward(Precision precision, const KvCache& cache, std::span<const int32_t> tokens,
                      std::span<const ForwardRows> sequences, HeadUse head) {
  precision_ = precision;
  cache_ = &cache;
  tokens_ = tokens;
  moved_bytes_ = fixed_bytes_[static_cast<size_t>(precision)];
  tell_read(tokens, sequences);
  prepare_positions(sequences);
  plan_head(head);
  plan_states(sequences);
  const int64_t layers = std::ssize(weights_.layers);
  const bool needs_all = logit_rows() == rows_ || !tapped_.empty();
  const int64_t all_rows = needs_all ? layers : first_reader_;
  pool_->run([&](Team& team) {
    weights_.entry == nullptr ? embed(team) : enter_pairs(team);
    if (weights_.per_layer.exists()) embed_per_layer(team);
    run_layers(team, 0, all_rows);
    if (all_rows == layers) finish(team);
  });
  cache_->states().finish();  // no recurrent layer reads the states of an earlier one
  if (all_rows == layers || logit_rows() == 0) return;
  keep_asked_rows();
  pool_->run([&](Team& team) {
    run_layers(team, all_rows, layers);
    finish(team);
  });
}

// Leaves the rows with logits: no later row reads what the others would compute from here on.
void Decoder::keep_asked_rows() {
  const int64_t hidden = spec_.hidden, width = std::ssize(per_layer_) / max_rows_;
  for (int64_t i = 0; i < logit_rows(); ++i) {
    const int64_t row = logit_rows_[static_cast<size_t>(i)];
    std::copy_n(residual_.begin() + row * hidden, hidden, residual_.begin() + i * hidden);
    std::copy_n(per_layer_.begin() + row * width, width, per_layer_.begin() + i * width);
  }
  rows_ = 0;
  for (SequenceRows& rows : sequences_) {
    const int64_t end = rows.first_row + rows.count;
    const auto asked = std::ranges::count_if(
        logit_rows_, [&](int64_t row) { return rows.first_row <= row && row < end; });
    rows = {rows.sequence, rows.start + rows.count - asked, asked, rows_};
    rows_ += asked;
  }
  std::erase_if(sequences_, [](const SequenceRows& rows) { return rows.count == 0; });
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  plan_attention();
}

void Decoder::run_layers(Team& team, int64_t first, int64_t last) {
  for (int64_t layer = first; layer < last; ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    copy_taps(team, layer);
    if (weights.is_recurrent())
      mix_recurrent(team, layer);
    else
      attend(team, layer);
    feed_forward(team, weights);
    if (weights.per_layer.exists()) add_per_layer(team, layer);
  }
  if (last == std::ssize(weights_.layers)) copy_taps(team, last);
}

void Decoder::norm(const uint16_t* weight, const uint16_t* bias, const float* x, int64_t n,
                   float* out) const {
  if (spec_.norm == NormKind::kRms)
    kernels_.rms_norm(x, weight, n, spec_.norm_epsilon, spec_.norm_offset, out);
  else
    kernels_.layer_norm(x, weight, bias, n, spec_.norm_epsilon, out);
}

void Decoder::norm(const Norm& norm, const float* x, int64_t n, float* out) const {
  this->norm(norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(), x, n, out);
}

// Adds the normed aside_ to the residual stream, and scales the sum.
void Decoder::add_aside(Team& team, const Norm& norm, float scale) {
  team.stage("norm after");
  team.share(rows_, 1, [&](int64_t row, int64_t) {
    float* const aside = aside_.data() + row * spec_.hidden;
    this->norm(norm, aside, spec_.hidden, aside);
    float* const residual = residual_.data() + row * spec_.hidden;
    kernels_.add(residual, aside, spec_.hidden);
    if (scale != 1.0f) kernels_.scale(residual, scale, spec_.hidden);
  });
}

void Decoder::embed(Team& team) {
  const int64_t hidden = spec_.hidden;
  team.stage("embedding");
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
      if (spec_.embedding_scale != 1.0f) kernels_.scale(out, spec_.embedding_scale, hidden);
    }
  });
}

}  // namespace specqd
