#include "model/layer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "model/products.h"

namespace specqd {
namespace {

const Norm kNoNorm;

std::unique_ptr<Block> make_mixer(const LayerWeights& layer, const AttentionPlace& place,
                                  const BlockSetting& setting) {
  if (layer.delta != nullptr) return make_delta_rule(layer, place.cache_layer, setting);
  if (layer.is_recurrent()) return make_short_convolution(layer, place.cache_layer, setting);
  if (layer.latent != nullptr) return make_latent_attention(layer, place, setting);
  return make_attention(layer, place, setting);
}

std::unique_ptr<Block> make_feed_forward_of(const LayerWeights& layer,
                                            const BlockSetting& setting) {
  if (layer.mixture != nullptr) return make_experts(layer, setting);
  return make_feed_forward(layer.feed_forwards.front(), "", setting);
}

std::unique_ptr<Block> with_convolution(std::unique_ptr<Block> block,
                                        const DynamicConvolution& weights,
                                        const BlockSetting& setting) {
  return weights.exists() ? make_convolved(std::move(block), weights, setting) : std::move(block);
}

// Normalises what is aside, adds it to the residual stream, and scales the sum.
void add_aside(Team& team, Batch& batch, const Norm& norm, float scale) {
  const Kernels& kernels = batch.traits.kernels;
  const int64_t hidden = batch.traits.spec.hidden;
  team.stage("norm after");
  team.share(batch.rows, 1, [&](int64_t row, int64_t) {
    float *const aside = batch.aside_of(row), *const residual = batch.residual_of(row);
    batch.traits.norm(norm, aside, hidden, aside);
    kernels.add(residual, aside, hidden);
    if (scale != 1.0f) kernels.scale(residual, scale, hidden);
  });
}

}  // namespace

Layer::Layer(const LayerWeights& weights, int64_t index, const CachePlan& plan, bool reads_pairs,
             const BlockSetting& setting)
    : is_parallel_(setting.traits.spec.is_parallel),
      reads_pairs_(reads_pairs),
      output_scale_(weights.output_scale),
      mixer_norm_(weights.attention_norm),
      mixer_post_norm_(weights.attention_post_norm),
      feed_forward_norm_(weights.feed_forward_norm),
      feed_forward_post_norm_(weights.feed_forward_post_norm),
      per_layer_post_norm_(weights.per_layer.post_norm),
      mixer_(
          with_convolution(make_mixer(weights, plan.places.at(static_cast<size_t>(index)), setting),
                           weights.attention_convolution, setting)),
      feed_forward_(with_convolution(make_feed_forward_of(weights, setting),
                                     weights.feed_forward_convolution, setting)),
      per_layer_(weights.per_layer.exists() ? make_per_layer_input(weights.per_layer, index,
                                                                   std::ssize(plan.places), setting)
                                            : nullptr) {
  const bool is_xielu = setting.traits.spec.activation == Activation::kXielu;
  if (is_xielu && (weights.mixture != nullptr || weights.per_layer.exists()))
    throw std::invalid_argument("xIELU has no parameters for experts and per-layer inputs");
  for (const FeedForward& each : weights.feed_forwards)
    if (is_xielu != (each.curve.size() == 4))
      throw std::invalid_argument("xIELU, and no other activation, has four parameters");
  if (is_parallel_ && weights.mixture != nullptr)
    throw std::invalid_argument("experts do not run in parallel with attention");
  if ((weights.attention_convolution.exists() || weights.feed_forward_convolution.exists()) &&
      (is_parallel_ || mixer_post_norm_.exists() || feed_forward_post_norm_.exists()))
    throw std::invalid_argument("the outputs of convolutions are added to the residual stream");
}

// x += post_norm(mixer(norm(x))); x += post_norm(feed_forward(norm(x))); and, where there are
// per-layer embeddings, x += post_norm(per_layer(x)). Without a post norm a block adds its outputs
// to x itself. A parallel feed forward reads the same x as the mixer; then both outputs are added.
void Layer::run(Team& team, Batch& batch) const {
  const int64_t hidden = batch.traits.spec.hidden;
  const float* const x = batch.residual.data();

  mixer_->run(
      team, batch,
      reads_pairs_ ? rows_at(batch.pairs.data(), 2 * hidden) : normed(batch, mixer_norm_),
      is_parallel_ || mixer_post_norm_.exists() ? Destination::kAside : Destination::kResidual);
  if (mixer_post_norm_.exists()) add_aside(team, batch, mixer_post_norm_, 1.0f);
  record(team, batch, "residual stream after attention", x, hidden, hidden);

  feed_forward_->run(team, batch, normed(batch, feed_forward_norm_),
                     feed_forward_post_norm_.exists() ? Destination::kAside
                     : is_parallel_                   ? Destination::kWithAside
                                                      : Destination::kResidual);
  if (feed_forward_post_norm_.exists())
    add_aside(team, batch, feed_forward_post_norm_, per_layer_ == nullptr ? output_scale_ : 1.0f);
  record(team, batch, "residual stream after the feed forward", x, hidden, hidden);

  if (per_layer_ == nullptr) return;
  per_layer_->run(team, batch, normed(batch, kNoNorm), Destination::kAside);
  add_aside(team, batch, per_layer_post_norm_, output_scale_);
  record(team, batch, "residual stream after the per-layer input", x, hidden, hidden);
}

void Layer::write_cache(Team& team, Batch& batch) const {
  mixer_->run(team, batch, normed(batch, kNoNorm), Destination::kCache);
}

std::vector<const Block*> Layer::blocks() const {
  std::vector<const Block*> all{mixer_.get(), feed_forward_.get()};
  if (per_layer_ != nullptr) all.push_back(per_layer_.get());
  return all;
}

CachePlan::CachePlan(const DecoderSpec& spec, std::span<const LayerWeights> layers)
    : states(spec.states) {
  // Layers with a window and layers without one need plans of their own, even with equal shapes.
  const auto kind_of = [&](const LayerWeights& layer) {
    const auto found = std::ranges::find_if(kinds, [&](const AttentionKind& kind) {
      return kind.shape == layer.attention && kind.longest.is_causal == layer.is_causal &&
             (kind.longest.window > 0) == (layer.window > 0);
    });
    if (found == kinds.end()) {
      kinds.push_back({layer.attention, {layer.window, layer.is_causal}});
      return kinds.size() - 1;
    }
    found->longest.window = std::max(found->longest.window, layer.window);
    return static_cast<size_t>(found - kinds.begin());
  };
  bool have_windows = true;
  for (const LayerWeights& layer : layers) {
    if (layer.is_recurrent()) {
      places.push_back({0, states.layers++, {}});
      first_reader = std::ssize(places);
      continue;
    }
    const AttentionShape& shape = spec.attentions.at(static_cast<size_t>(layer.attention));
    places.push_back({kind_of(layer), std::ssize(kv.layers), {layer.window, layer.is_causal}});
    if (layer.window == 0) {
      have_windows = false;
      places.back().first_strip = std::ssize(strip_heads);
      strip_heads.insert(strip_heads.end(), static_cast<size_t>(shape.kv_heads), shape.group());
      const KvLayer read{shape.kv_heads, shape.head_dim, shape.value_dim};
      strip_words.insert(strip_words.end(), static_cast<size_t>(shape.kv_heads),
                         read.page_words() / shape.kv_heads / kPagePositions);
    }
    longest_window = std::max(longest_window, layer.window);
    if (layer.kv_layer >= 0) {
      places.back().cache_layer = places.at(static_cast<size_t>(layer.kv_layer)).cache_layer;
      continue;
    }
    kv.layers.push_back({shape.kv_heads, shape.head_dim, shape.value_dim});
    first_reader = std::ssize(places);
  }
  if (!have_windows) longest_window = 0;
}

}  // namespace specqd
