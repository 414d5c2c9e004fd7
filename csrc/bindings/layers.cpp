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

using Floats = nb::ndarray<const float, nb::numpy, nb::ndim<1>, nb::c_contig>;
using OptionalFloats = std::optional<Floats>;
using OptionalBits = std::optional<BitVector>;
using OptionalNorm = std::optional<Norm>;
using Weight = std::shared_ptr<PackedWeight>;

void bind_parts(nb::module_& m) {
  nb::class_<Norm>(m, "Norm").def("__init__", &make_struct<Norm, BitVector, OptionalBits>,
                                  "weight"_a, "bias"_a = nb::none());
  nb::class_<FeedForward>(m, "FeedForward")
      .def("__init__",
           &make_struct<FeedForward, Weight, Weight, OptionalBits, OptionalBits, OptionalBits>,
           nb::kw_only(), "gate_up"_a, "down"_a, "gate_bias"_a = nb::none(),
           "up_bias"_a = nb::none(), "down_bias"_a = nb::none());
  nb::class_<DeltaWeights>(m, "DeltaWeights",
                           "The delta rule of a recurrent layer; `rates` are the rows of betas,\n"
                           "then of decays.")
      .def("__init__", &make_struct<DeltaWeights, Weight, Floats, Floats, Floats>, nb::kw_only(),
           "rates"_a, "log_rate"_a, "step_bias"_a, "norm"_a);
  nb::class_<LatentWeights>(m, "LatentWeights",
                            "What a latent layer's attention has beside its first product.")
      .def("__init__", &make_struct<LatentWeights, Weight, OptionalNorm, Norm, Weight, Weight>,
           nb::kw_only(), "queries"_a.none(), "query_norm"_a.none(), "norm"_a, "keys"_a,
           "values"_a);
  nb::class_<PerLayerInput>(m, "PerLayerInput")
      .def("__init__", &make_struct<PerLayerInput, Weight, Weight, Norm>, nb::kw_only(), "gate"_a,
           "projection"_a, "post_norm"_a);
  nb::class_<PerLayerEmbedding>(m, "PerLayerEmbedding")
      .def(
          "__init__",
          [](PerLayerEmbedding* self, const BitMatrix& table, Weight projection, const Norm& norm) {
            new (self) PerLayerEmbedding{row_source(table).data, projection, norm};
          },
          nb::kw_only(), "table"_a, "projection"_a, "norm"_a, nb::keep_alive<1, 2>());
  nb::class_<Mixture>(m, "Mixture",
                      "What a layer has beside its experts. The router's rows are one for each\n"
                      "expert, and one for the gate of the shared feed forward, if it has one.")
      .def("__init__",
           &make_struct<Mixture, Weight, OptionalBits, std::optional<FeedForward>, OptionalNorm,
                        OptionalNorm, OptionalNorm, OptionalNorm, float, OptionalFloats,
                        OptionalFloats, int64_t, int64_t, float>,
           nb::kw_only(), "router"_a, "router_bias"_a = nb::none(), "shared"_a = nb::none(),
           "experts_norm"_a = nb::none(), "router_norm"_a = nb::none(),
           "experts_post_norm"_a = nb::none(), "shared_post_norm"_a = nb::none(),
           "score_scale"_a = 1.0f, "share_scales"_a = nb::none(), "choice_bias"_a = nb::none(),
           "groups"_a = 1, "chosen_groups"_a = 1, "least_sum"_a = 0.0f);
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_parts(m);
  nb::class_<LayerWeights>(m, "LayerWeights")
      .def("__init__",
           &make_struct<LayerWeights, OptionalNorm, OptionalNorm, OptionalNorm, OptionalNorm,
                        OptionalNorm, OptionalNorm, OptionalNorm, Weight, Weight, OptionalBits,
                        OptionalBits, OptionalBits, std::vector<FeedForward>,
                        std::shared_ptr<Mixture>, int64_t, int, int, int, bool,
                        std::optional<PerLayerInput>, float, OptionalBits, OptionalBits,
                        std::shared_ptr<DeltaWeights>, std::shared_ptr<LatentWeights>>,
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
