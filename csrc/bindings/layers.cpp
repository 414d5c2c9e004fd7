// Binds the weights of layers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "bindings/bindings.h"
#include "model/layer_weights.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

using FloatVector = nb::ndarray<const float, nb::numpy, nb::ndim<1>, nb::c_contig>;

std::vector<float> floats_of(const FloatVector& values) {
  return {values.data(), values.data() + values.size()};
}

Vector vector_of(const std::optional<BitVector>& bits) {
  if (!bits) return {};
  return Vector(bits->data(), bits->data() + bits->size());
}

Norm norm_of(const std::optional<Norm>& norm) { return norm ? *norm : Norm{}; }

void bind_mixture(nb::module_& m) {
  using Weight = std::shared_ptr<PackedWeight>;
  nb::class_<Mixture>(m, "Mixture",
                      "What a layer has beside its experts. The router's rows are one for each\n"
                      "expert, and one for the gate of the shared feed forward, if it has one.")
      .def(
          "__init__",
          [](Mixture* self, Weight router, const std::optional<BitVector>& router_bias,
             const std::optional<FeedForward>& shared, const std::optional<Norm>& experts_norm,
             const std::optional<Norm>& router_norm, const std::optional<Norm>& experts_post_norm,
             const std::optional<Norm>& shared_post_norm, float score_scale,
             const std::optional<FloatVector>& share_scales,
             const std::optional<FloatVector>& choice_bias, int64_t groups, int64_t chosen_groups,
             float least_sum) {
            new (self) Mixture{std::move(router),
                               vector_of(router_bias),
                               shared.value_or(FeedForward{}),
                               norm_of(experts_norm),
                               norm_of(router_norm),
                               norm_of(experts_post_norm),
                               norm_of(shared_post_norm),
                               score_scale,
                               share_scales ? floats_of(*share_scales) : std::vector<float>{},
                               choice_bias ? floats_of(*choice_bias) : std::vector<float>{},
                               groups,
                               chosen_groups,
                               least_sum};
          },
          nb::kw_only(), "router"_a, "router_bias"_a = nb::none(), "shared"_a = nb::none(),
          "experts_norm"_a = nb::none(), "router_norm"_a = nb::none(),
          "experts_post_norm"_a = nb::none(), "shared_post_norm"_a = nb::none(),
          "score_scale"_a = 1.0f, "share_scales"_a = nb::none(), "choice_bias"_a = nb::none(),
          "groups"_a = 1, "chosen_groups"_a = 1, "least_sum"_a = 0.0f);
}

}  // namespace

void bind_layers(nb::module_& m) {
  using Weight = std::shared_ptr<PackedWeight>;
  using Optional = std::optional<BitVector>;
  nb::class_<Norm>(m, "Norm").def(
      "__init__",
      [](Norm* self, const BitVector& weight, const Optional& bias) {
        new (self) Norm{vector_of(weight), vector_of(bias)};
      },
      "weight"_a, "bias"_a = nb::none());
  nb::class_<FeedForward>(m, "FeedForward")
      .def(
          "__init__",
          [](FeedForward* self, Weight gate_up, Weight down, const Optional& gate_bias,
             const Optional& up_bias, const Optional& down_bias) {
            new (self) FeedForward{gate_up, down, vector_of(gate_bias), vector_of(up_bias),
                                   vector_of(down_bias)};
          },
          nb::kw_only(), "gate_up"_a, "down"_a, "gate_bias"_a = nb::none(),
          "up_bias"_a = nb::none(), "down_bias"_a = nb::none());
  nb::class_<DeltaWeights>(m, "DeltaWeights",
                           "The delta rule of a recurrent layer; `rates` are the rows of betas,\n"
                           "then of decays.")
      .def(
          "__init__",
          [](DeltaWeights* self, Weight rates, const FloatVector& log_rate,
             const FloatVector& step_bias, const FloatVector& norm) {
            new (self)
                DeltaWeights{rates, floats_of(log_rate), floats_of(step_bias), floats_of(norm)};
          },
          nb::kw_only(), "rates"_a, "log_rate"_a, "step_bias"_a, "norm"_a);
  nb::class_<LatentWeights>(m, "LatentWeights",
                            "What a latent layer's attention has beside its first product.")
      .def(
          "__init__",
          [](LatentWeights* self, Weight queries, const std::optional<Norm>& query_norm,
             const Norm& norm, Weight keys, Weight values) {
            new (self) LatentWeights{queries, norm_of(query_norm), norm, keys, values};
          },
          nb::kw_only(), "queries"_a.none(), "query_norm"_a.none(), "norm"_a, "keys"_a, "values"_a);
  nb::class_<PerLayerInput>(m, "PerLayerInput")
      .def(
          "__init__",
          [](PerLayerInput* self, Weight gate, Weight projection, const Norm& post_norm) {
            new (self) PerLayerInput{gate, projection, post_norm};
          },
          nb::kw_only(), "gate"_a, "projection"_a, "post_norm"_a);
  nb::class_<PerLayerEmbedding>(m, "PerLayerEmbedding")
      .def(
          "__init__",
          [](PerLayerEmbedding* self, const BitMatrix& table, Weight projection, const Norm& norm) {
            new (self) PerLayerEmbedding{row_source(table).data, projection, norm};
          },
          nb::kw_only(), "table"_a, "projection"_a, "norm"_a, nb::keep_alive<1, 2>());
  bind_mixture(m);
  using OptionalNorm = std::optional<Norm>;
  nb::class_<LayerWeights>(m, "LayerWeights")
      .def(
          "__init__",
          [](LayerWeights* self, const OptionalNorm& attention_norm,
             const OptionalNorm& attention_post_norm, const OptionalNorm& feed_forward_norm,
             const OptionalNorm& feed_forward_post_norm, const OptionalNorm& query_norm,
             const OptionalNorm& key_norm, const OptionalNorm& value_norm, Weight query_key_value,
             Weight output, const Optional& query_key_value_bias, const Optional& output_bias,
             const Optional& sinks, std::vector<FeedForward> feed_forwards,
             std::shared_ptr<Mixture> mixture, int64_t window, int rope, int attention,
             int kv_layer, bool values_are_keys, const std::optional<PerLayerInput>& per_layer,
             float output_scale, const Optional& convolution, const Optional& convolution_bias,
             std::shared_ptr<DeltaWeights> delta, std::shared_ptr<LatentWeights> latent) {
            new (self) LayerWeights{norm_of(attention_norm),
                                    norm_of(attention_post_norm),
                                    norm_of(feed_forward_norm),
                                    norm_of(feed_forward_post_norm),
                                    norm_of(query_norm),
                                    norm_of(key_norm),
                                    norm_of(value_norm),
                                    query_key_value,
                                    output,
                                    vector_of(query_key_value_bias),
                                    vector_of(output_bias),
                                    vector_of(sinks),
                                    std::move(feed_forwards),
                                    std::move(mixture),
                                    window,
                                    rope,
                                    attention,
                                    kv_layer,
                                    values_are_keys,
                                    per_layer.value_or(PerLayerInput{}),
                                    output_scale,
                                    vector_of(convolution),
                                    vector_of(convolution_bias),
                                    std::move(delta),
                                    std::move(latent)};
          },
          nb::kw_only(), "attention_norm"_a.none(), "attention_post_norm"_a.none(),
          "feed_forward_norm"_a.none(), "feed_forward_post_norm"_a.none(), "query_norm"_a.none(),
          "key_norm"_a.none(), "value_norm"_a.none(), "query_key_value"_a, "output"_a,
          "query_key_value_bias"_a.none(), "output_bias"_a.none(), "sinks"_a.none(),
          "feed_forwards"_a, "mixture"_a.none(), "window"_a, "rope"_a, "attention"_a, "kv_layer"_a,
          "values_are_keys"_a, "per_layer"_a.none(), "output_scale"_a,
          "convolution"_a.none() = nb::none(), "convolution_bias"_a.none() = nb::none(),
          "delta"_a.none() = nb::none(), "latent"_a.none() = nb::none());
}

}  // namespace specqd
