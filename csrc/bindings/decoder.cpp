// Binds the decoder and its specification.
#include "model/decoder.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "bindings/exclusive.h"
#include "decode/forward.h"
#include "model/kv_cache.h"
#include "weights/error_feedback.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

const std::vector<std::string> kNormKinds{"rms", "layer"};
const std::vector<std::string> kActivations{"silu", "gelu", "gelu_tanh", "clamped_swiglu"};

void bind_spec(nb::module_& m) {
  nb::class_<AttentionShape>(m, "AttentionShape")
      .def(
          "__init__",
          [](AttentionShape* self, int64_t heads, int64_t kv_heads, int64_t head_dim,
             int64_t value_dim, float scale, float cap) {
            new (self) AttentionShape{heads, kv_heads, head_dim, value_dim, scale, cap};
          },
          nb::kw_only(), "heads"_a, "kv_heads"_a, "head_dim"_a, "value_dim"_a, "scale"_a, "cap"_a);
  nb::class_<StateShape>(m, "StateShape",
                         "The convolution of recurrent layers, and the heads of their delta rule,\n"
                         "if they have one.")
      .def(
          "__init__",
          [](StateShape* self, int64_t channels, int64_t taps, int64_t key_heads,
             int64_t value_heads, int64_t key_dim, int64_t value_dim) {
            new (self) StateShape{0, channels, taps, key_heads, value_heads, key_dim, value_dim};
          },
          nb::kw_only(), "channels"_a, "taps"_a, "key_heads"_a = 0, "value_heads"_a = 0,
          "key_dim"_a = 0, "value_dim"_a = 0);
  nb::class_<DecoderSpec>(m, "DecoderSpec")
      .def(
          "__init__",
          [](DecoderSpec* self, int64_t hidden, int64_t vocabulary,
             std::vector<AttentionShape> attentions, std::vector<RopeSpec> ropes,
             float norm_epsilon, const std::string& norm, float norm_offset, bool norms_whole_rows,
             const std::string& activation, bool is_gated, bool is_parallel, float logit_cap,
             float embedding_scale, float residual_scale, float logit_scale,
             int64_t experts_per_token, bool shares_of_chosen, bool gates_attention,
             const std::optional<StateShape>& states) {
            new (self) DecoderSpec{hidden,
                                   vocabulary,
                                   std::move(attentions),
                                   std::move(ropes),
                                   norm_epsilon,
                                   kind_of<NormKind>(norm, kNormKinds),
                                   norm_offset,
                                   norms_whole_rows,
                                   kind_of<Activation>(activation, kActivations),
                                   is_gated,
                                   is_parallel,
                                   logit_cap,
                                   embedding_scale,
                                   residual_scale,
                                   logit_scale,
                                   experts_per_token,
                                   shares_of_chosen,
                                   gates_attention,
                                   states.value_or(StateShape{})};
          },
          nb::kw_only(), "hidden"_a, "vocabulary"_a, "attentions"_a, "ropes"_a, "norm_epsilon"_a,
          "norm"_a, "norm_offset"_a, "norms_whole_rows"_a, "activation"_a, "is_gated"_a,
          "is_parallel"_a, "logit_cap"_a, "embedding_scale"_a, "residual_scale"_a, "logit_scale"_a,
          "experts_per_token"_a, "shares_of_chosen"_a, "gates_attention"_a = false,
          "states"_a.none() = nb::none());
}

void bind_partial_head(nb::module_& m) {
  using Tokens = std::vector<int32_t>;
  nb::class_<PartialHead>(m, "PartialHead", "Chooses the rows of the head that a draft reads.")
      .def(nb::init<int64_t>(), "vocabulary"_a)
      .def("set_first_ids", &PartialHead::set_first_ids, "ids"_a,
           "Sets the number of first ids that are read.")
      .def(
          "keep",
          [](PartialHead& list, const Tokens& tokens) {
            const Exclusive use(&list);
            list.keep(tokens);
          },
          "tokens"_a, "Always holds these ids.")
      .def(
          "see",
          [](PartialHead& list, const Tokens& tokens) {
            const Exclusive use(&list);
            list.see(tokens);
          },
          "tokens"_a, "Records tokens that the target has read or picked.")
      .def(
          "panels",
          [](PartialHead& list, int64_t panels) {
            const Exclusive use(&list);
            std::vector<PanelRun> runs;
            list.list(panels, runs);
            std::vector<int64_t> all;
            for (const PanelRun& run : runs)
              for (int64_t panel = run.first; panel < run.last; ++panel) all.push_back(panel);
            return all;
          },
          "panels"_a, "Returns the panels to read of a head of `panels`.");
}

void bind_entry(nb::module_& m) {
  using Weight = std::shared_ptr<PackedWeight>;
  using OptionalNorm = std::optional<Norm>;
  nb::class_<HeadEntry>(m, "HeadEntry", "The entry of a head: pairs of a feature and a token.")
      .def(
          "__init__",
          [](HeadEntry* self, Weight fc, const OptionalNorm& features_norm,
             std::vector<Norm> tap_norms, const Norm& embedding_norm, const Norm& hidden_norm,
             Weight embedding, bool keeps_normed, bool recycles_normed, Weight projection,
             bool hidden_first, bool blanks_first) {
            new (self) HeadEntry{std::move(fc),         features_norm ? *features_norm : Norm{},
                                 std::move(tap_norms),  embedding_norm,
                                 hidden_norm,           std::move(embedding),
                                 keeps_normed,          recycles_normed,
                                 std::move(projection), hidden_first,
                                 blanks_first};
          },
          nb::kw_only(), "fc"_a.none(), "features_norm"_a.none(), "tap_norms"_a, "embedding_norm"_a,
          "hidden_norm"_a, "embedding"_a.none(), "keeps_normed"_a, "recycles_normed"_a,
          "projection"_a.none() = nb::none(), "hidden_first"_a = false, "blanks_first"_a = false);
}

void bind_forward(nb::module_& m) {
  nb::class_<Decoder>(m, "Decoder")
      .def(
          "__init__",
          [](Decoder* self, std::shared_ptr<Pool> pool, const std::string& isa,
             const DecoderSpec& spec, const std::vector<LayerWeights>& layers,
             const Norm& final_norm, std::shared_ptr<PackedWeight> head,
             const std::optional<BitMatrix>& embedding,
             const std::optional<PerLayerEmbedding>& per_layer, int64_t max_rows,
             std::shared_ptr<HeadEntry> entry) {
            DecoderWeights weights{layers,
                                   final_norm,
                                   std::move(head),
                                   embedding ? row_source(*embedding).data : nullptr,
                                   per_layer.value_or(PerLayerEmbedding{}),
                                   std::move(entry)};
            new (self)
                Decoder(spec, std::move(weights), std::move(pool), kernels_or_throw(isa), max_rows);
          },
          nb::kw_only(), "pool"_a, "isa"_a, "spec"_a, "layers"_a, "final_norm"_a, "head"_a,
          "embedding"_a.none(), "per_layer"_a = nb::none(), "max_rows"_a,
          "entry"_a.none() = nb::none(), nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>())
      .def_prop_ro("max_rows", &Decoder::max_rows)
      .def_prop_ro("moved_bytes", &Decoder::moved_bytes)
      .def(
          "weight_bytes",
          [](const Decoder& decoder, bool is_draft) {
            return decoder.weight_bytes(is_draft ? Precision::kFp4 : Precision::kExact);
          },
          "is_draft"_a)
      .def(
          "forward",
          [](Decoder& decoder, bool is_draft, const KvCache& cache,
             const std::vector<int32_t>& tokens, const std::vector<int>& sequences,
             const std::vector<int64_t>& starts, const std::vector<int64_t>& counts,
             const std::vector<int64_t>& logits) {
            const Exclusive use(&decoder, &cache, &decoder.partial_head());
            std::vector<ForwardRows> rows;
            for (size_t i = 0; i < sequences.size(); ++i)
              rows.push_back({sequences[i], starts.at(i), counts.at(i), logits.at(i)});
            check_rows(decoder, cache, tokens, rows);
            const nb::gil_scoped_release released;
            decoder.forward(is_draft ? Precision::kFp4 : Precision::kExact, cache, tokens, rows);
          },
          "is_draft"_a, "cache"_a, "tokens"_a, "sequences"_a, "starts"_a, "counts"_a, "logits"_a)
      .def("tap", exclusively<Decoder>(&Decoder::tap), "boundaries"_a,
           "Later forwards copy the residual stream at these boundaries: b is the input of layer "
           "b,\n"
           "and the number of layers is the input of the final norm. Ascending; none: no copies.")
      .def_prop_ro(
          "tapped",
          [](const Decoder& decoder) {
            const auto tapped = decoder.tapped();
            return std::vector<int64_t>(tapped.begin(), tapped.end());
          },
          "The boundaries that forwards copy.")
      .def(
          "taps",
          [](const Decoder& decoder) {
            const Exclusive use(&decoder);
            const auto bits = decoder.taps(0, decoder.rows());
            return owned_array(std::vector<uint16_t>(bits.begin(), bits.end()),
                               {static_cast<size_t>(decoder.rows()), decoder.tapped().size(),
                                static_cast<size_t>(decoder.spec().hidden)});
          },
          "Returns copies of the last forward's rows, [rows, boundaries, hidden] BF16 bits.")
      .def("watch_inputs", exclusively<Decoder>(&Decoder::watch_inputs),
           "Sums the products of each two inputs of exact forwards' matrices from now on.")
      .def(
          "take_input_products",
          [](Decoder& decoder) {
            const Exclusive use(&decoder);
            if (!decoder.watches_inputs()) throw std::logic_error("watch_inputs() comes first");
            std::vector<nb::ndarray<nb::numpy, float>> all;
            for (std::vector<float>& sums : decoder.take_input_products()) {
              const auto group = static_cast<size_t>(kFeedbackInputs),
                         columns = sums.size() / group;
              all.push_back(owned_array(std::move(sums), {columns, group}));
            }
            return all;
          },
          "Ends the watch. Returns the sums, [columns, group] each, of each input with those of "
          "its\n"
          "group: by layer of queries, keys and values, of the output, of gate and up, and of "
          "down;\n"
          "last, of the head. Only inputs from their own on are summed; others hold anything.")
      .def_prop_ro(
          "partial_head", [](const Decoder& decoder) { return &decoder.partial_head(); },
          nb::rv_policy::reference_internal, "The partial head of drafts for this model.")
      .def(
          "draft_for",
          [](Decoder& decoder, const Decoder& target) {
            const Exclusive use(&decoder, &target);
            decoder.draft_for(target);
          },
          "target"_a, "Uses the partial head of `target`, for which this model drafts.")
      .def(
          "logits",
          [](const Decoder& decoder) {
            const Exclusive use(&decoder);
            const auto rows = static_cast<size_t>(decoder.logit_rows());
            const auto width = static_cast<size_t>(decoder.spec().vocabulary);
            std::vector<float> copy(rows * width);
            for (size_t i = 0; i < rows; ++i) {
              const auto row = decoder.logits(static_cast<int64_t>(i));
              std::copy(row.begin(), row.end(), copy.begin() + static_cast<int64_t>(i * width));
            }
            return owned_array(std::move(copy), {rows, width});
          },
          "Returns a copy of the last forward's logits, [rows, vocabulary] float32.");
}

}  // namespace

void bind_decoder(nb::module_& m) {
  bind_spec(m);
  bind_partial_head(m);
  bind_entry(m);
  bind_forward(m);
}

}  // namespace specqd
