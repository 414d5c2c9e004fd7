// Binds the weights of layers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/fields.h"
#include "model/layer_weights.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

void bind_parts(nb::module_& m) {
  bind_struct<Norm>(m, "Norm", "The weight and bias of a norm, in BF16.", required<&Norm::weight>,
                    optional<&Norm::bias>);
  bind_struct<FeedForward>(m, "FeedForward", "Two products with an activation between them.",
                           required<&FeedForward::gate_up>, required<&FeedForward::down>,
                           optional<&FeedForward::gate_bias>, optional<&FeedForward::up_bias>,
                           optional<&FeedForward::down_bias>, optional<&FeedForward::curve>);
  bind_struct<DeltaWeights>(m, "DeltaWeights",
                            "The delta rule of a recurrent layer. The rows of `rates` are those of "
                            "betas,\nthen those of decays.",
                            required<&DeltaWeights::rates>, required<&DeltaWeights::log_rate>,
                            required<&DeltaWeights::step_bias>, required<&DeltaWeights::norm>);
  bind_struct<LatentWeights>(m, "LatentWeights",
                             "The weights of latent attention except its first product and its "
                             "output.",
                             optional<&LatentWeights::queries>,
                             optional<&LatentWeights::query_norm>, required<&LatentWeights::norm>,
                             required<&LatentWeights::keys>, required<&LatentWeights::values>);
  bind_struct<PerLayerInput>(m, "PerLayerInput",
                             "A layer's addition of its part of the per-layer embedding.",
                             required<&PerLayerInput::gate>, required<&PerLayerInput::projection>,
                             required<&PerLayerInput::post_norm>);
  bind_struct<DynamicConvolution>(
      m, "DynamicConvolution",
      "Convolutions of the inputs and of the outputs of a part of a layer over the rows of a\n"
      "forward. `base` is [2, taps, hidden]; `projection` is [2 * taps * groups, hidden].",
      required<&DynamicConvolution::projection>, required<&DynamicConvolution::base>,
      required<&DynamicConvolution::taps>, required<&DynamicConvolution::groups>);
  nb::class_<PerLayerEmbedding>(m, "PerLayerEmbedding",
                                "The per-layer embeddings of tokens; `table` is read in place.")
      .def(
          "__init__",
          [](PerLayerEmbedding* self, const BitMatrix& table,
             std::shared_ptr<PackedWeight> projection, const Norm& norm) {
            new (self) PerLayerEmbedding{
                .table = row_source(table).data, .projection = std::move(projection), .norm = norm};
          },
          nb::kw_only(), "table"_a.noconvert(), "projection"_a, "norm"_a, nb::keep_alive<1, 2>());
}

void bind_mixture(nb::module_& m) {
  bind_struct<Mixture>(
      m, "Mixture",
      "The weights and traits of a layer with experts, except the experts themselves. The router\n"
      "has one row per expert, and one more for the gate of a gated shared feed forward.",
      required<&Mixture::router>, optional<&Mixture::router_bias>, optional<&Mixture::shared>,
      optional<&Mixture::experts_norm>, optional<&Mixture::router_norm>,
      optional<&Mixture::experts_post_norm>, optional<&Mixture::shared_post_norm>,
      required<&Mixture::score_scale>, optional<&Mixture::expert_scales>,
      optional<&Mixture::correction_bias>, required<&Mixture::groups>,
      required<&Mixture::chosen_groups>, required<&Mixture::weight_sum_epsilon>);
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_parts(m);
  bind_mixture(m);
  bind_struct<LayerWeights>(
      m, "LayerWeights", "The weights and traits of one layer.",
      optional<&LayerWeights::attention_norm>, optional<&LayerWeights::attention_post_norm>,
      optional<&LayerWeights::feed_forward_norm>, optional<&LayerWeights::feed_forward_post_norm>,
      optional<&LayerWeights::query_norm>, optional<&LayerWeights::key_norm>,
      optional<&LayerWeights::value_norm>, required<&LayerWeights::query_key_value>,
      required<&LayerWeights::output>, optional<&LayerWeights::query_key_value_bias>,
      optional<&LayerWeights::output_bias>, optional<&LayerWeights::sinks>,
      required<&LayerWeights::feed_forwards>, optional<&LayerWeights::mixture>,
      required<&LayerWeights::window>, required<&LayerWeights::is_causal>,
      required<&LayerWeights::rope>, required<&LayerWeights::attention>,
      required<&LayerWeights::kv_layer>, required<&LayerWeights::values_are_keys>,
      optional<&LayerWeights::per_layer>, required<&LayerWeights::output_scale>,
      optional<&LayerWeights::convolution>, optional<&LayerWeights::convolution_bias>,
      optional<&LayerWeights::delta>, optional<&LayerWeights::latent>,
      optional<&LayerWeights::attention_convolution>,
      optional<&LayerWeights::feed_forward_convolution>);
}

}  // namespace specqd
