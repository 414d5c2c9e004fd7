// Binds the decoder and its specification.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/exclusive.h"
#include "bindings/fields.h"
#include "decode/forward.h"
#include "model/decoder.h"
#include "model/kv_cache.h"
#include "weights/error_feedback.h"

using namespace nanobind::literals;

namespace specqd {

template <>
const std::vector<std::string> kNamesOf<NormKind>{"rms", "layer"};
template <>
const std::vector<std::string> kNamesOf<AttentionGates>{"none", "heads", "values"};
template <>
const std::vector<std::string> kNamesOf<Activation>{"silu",           "gelu",         "gelu_tanh",
                                                    "clamped_swiglu", "relu_squared", "xielu"};

namespace {

void bind_spec(nb::module_& m) {
  bind_struct<AttentionShape>(
      m, "AttentionShape", "The heads of attention, and the scale and soft cap of their scores.",
      required<&AttentionShape::heads>, required<&AttentionShape::kv_heads>,
      required<&AttentionShape::head_dim>, required<&AttentionShape::value_dim>,
      required<&AttentionShape::scale>, required<&AttentionShape::cap>);
  bind_struct<StateShape, &StateShape::layers>(
      m, "StateShape",
      "The convolution of recurrent layers, and the heads of their delta rule: 0 without one.",
      required<&StateShape::channels>, required<&StateShape::kernel_width>,
      required<&StateShape::key_heads>, required<&StateShape::value_heads>,
      required<&StateShape::key_dim>, required<&StateShape::value_dim>);
  bind_struct<DecoderSpec>(
      m, "DecoderSpec", "The shape and traits of a decoder.", required<&DecoderSpec::hidden>,
      required<&DecoderSpec::vocabulary>, required<&DecoderSpec::attentions>,
      required<&DecoderSpec::ropes>, required<&DecoderSpec::norm_epsilon>,
      required<&DecoderSpec::norm>, required<&DecoderSpec::norm_offset>,
      required<&DecoderSpec::norms_whole_rows>, required<&DecoderSpec::norms_after_rotation>,
      required<&DecoderSpec::activation>, required<&DecoderSpec::is_gated>,
      required<&DecoderSpec::is_parallel>, required<&DecoderSpec::logit_cap>,
      required<&DecoderSpec::embedding_scale>, required<&DecoderSpec::residual_scale>,
      required<&DecoderSpec::logit_scale>, required<&DecoderSpec::experts_per_token>,
      required<&DecoderSpec::normalizes_routing_weights>, required<&DecoderSpec::attention_gates>,
      optional<&DecoderSpec::states>);
}

void bind_partial_head(nb::module_& m) {
  nb::class_<PartialHead>(m, "PartialHead",
                          "Chooses the rows of the output head that a draft reads.")
      .def(nb::init<int64_t>(), "vocabulary"_a)
      .def("set_first_ids", &PartialHead::set_first_ids, "ids"_a,
           "Sets how many of the first ids are always read.")
      .def("keep", exclusively<PartialHead>(&PartialHead::keep), "tokens"_a,
           "Always reads these ids.")
      .def("record", exclusively<PartialHead>(&PartialHead::record), "tokens"_a,
           "Records tokens that the target has read or sampled.")
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
          "panels"_a, "Returns the panels to read of an output head that has `panels`.");
}

void bind_entry(nb::module_& m) {
  bind_struct<HeadEntry>(m, "HeadEntry",
                         "The entry of a draft head: pairs of a feature and a token.",
                         optional<&HeadEntry::fc>, optional<&HeadEntry::features_norm>,
                         required<&HeadEntry::tap_norms>, required<&HeadEntry::embedding_norm>,
                         required<&HeadEntry::hidden_norm>, optional<&HeadEntry::embedding>,
                         required<&HeadEntry::keeps_normed>, required<&HeadEntry::recycles_normed>,
                         optional<&HeadEntry::projection>, required<&HeadEntry::hidden_first>,
                         required<&HeadEntry::blanks_first>);
  bind_struct<ContextEntry>(m, "ContextEntry",
                            "The entry of a block drafter's context: features of positions.",
                            required<&ContextEntry::fc>, required<&ContextEntry::norm>,
                            optional<&ContextEntry::embedding>);
  nb::class_<SelectorWeights>(m, "SelectorWeights",
                              "The weights that rank the candidates of a row again; the codebooks, "
                              "[vocabulary,\nrank], are read in place.")
      .def(
          "__init__",
          [](SelectorWeights* self, std::shared_ptr<PackedWeight> projection,
             const BitMatrix& predecessors, const BitMatrix& successors, int64_t candidates) {
            const RowSource before = row_source(predecessors), after = row_source(successors);
            const auto rank = static_cast<size_t>(projection->rows());
            if (before.rows != after.rows || predecessors.shape(1) != rank ||
                successors.shape(1) != rank)
              throw std::invalid_argument("codebooks must be [vocabulary, rank]");
            new (self) SelectorWeights{std::move(projection), before.data, after.data, before.rows,
                                       candidates};
          },
          nb::kw_only(), "projection"_a, "predecessors"_a.noconvert(), "successors"_a.noconvert(),
          "candidates"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>());
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
             std::shared_ptr<HeadEntry> entry, std::shared_ptr<ContextEntry> context,
             std::shared_ptr<SelectorWeights> selector) {
            const DecoderWeights weights{
                .layers = layers,
                .final_norm = final_norm,
                .head = std::move(head),
                .embedding = embedding ? row_source(*embedding).data : nullptr,
                .per_layer = per_layer.value_or(PerLayerEmbedding{}),
                .entry = std::move(entry),
                .context = std::move(context),
                .selector = std::move(selector)};
            new (self) Decoder(spec, weights, std::move(pool), kernels_or_throw(isa), max_rows);
          },
          nb::kw_only(), "pool"_a, "isa"_a, "spec"_a, "layers"_a, "final_norm"_a, "head"_a,
          "embedding"_a.none().noconvert(), "per_layer"_a = nb::none(), "max_rows"_a,
          "entry"_a.none() = nb::none(), "context"_a.none() = nb::none(),
          "selector"_a.none() = nb::none(), nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>())
      .def_prop_ro("max_rows", &Decoder::max_rows)
      .def_prop_ro("moved_bytes", &Decoder::moved_bytes)
      .def(
          "forward",
          [](Decoder& decoder, bool is_draft, const KvCache& cache,
             const std::vector<int32_t>& tokens, const std::vector<int>& sequences,
             const std::vector<int64_t>& starts, const std::vector<int64_t>& counts,
             const std::vector<int64_t>& logits) {
            const Exclusive use(&decoder, &cache, &decoder.output_head().partial_head());
            std::vector<ForwardRows> rows;
            for (size_t i = 0; i < sequences.size(); ++i)
              rows.push_back({sequences[i], starts.at(i), counts.at(i), logits.at(i)});
            check_rows(decoder, cache, tokens, rows);
            const nb::gil_scoped_release released;
            decoder.forward({precision_of(is_draft), cache, tokens, rows});
          },
          "is_draft"_a, "cache"_a, "tokens"_a, "sequences"_a, "starts"_a, "counts"_a, "logits"_a)
      .def(
          "tap",
          [](Decoder& decoder, std::vector<int64_t> boundaries) {
            const Exclusive use(&decoder);
            decoder.taps().set(std::move(boundaries));
          },
          "boundaries"_a,
          "Makes later forwards copy the residual stream at these boundaries, which ascend.\n"
          "Boundary b is the input of layer b; the number of layers is the input of the final\n"
          "norm. Without boundaries, nothing is copied.")
      .def_prop_ro(
          "tapped",
          [](Decoder& decoder) {
            const auto tapped = decoder.taps().boundaries();
            return std::vector<int64_t>(tapped.begin(), tapped.end());
          },
          "The boundaries that forwards copy.")
      .def(
          "taps",
          [](Decoder& decoder) {
            const Exclusive use(&decoder);
            const auto bits = decoder.taps().rows(0, decoder.rows());
            return owned_array(
                std::vector<uint16_t>(bits.begin(), bits.end()),
                {static_cast<size_t>(decoder.rows()), decoder.taps().boundaries().size(),
                 static_cast<size_t>(decoder.spec().hidden)});
          },
          "Returns copies of the last forward's residual stream as BF16 bits,\n"
          "[rows, boundaries, hidden].")
      .def("watch_inputs", exclusively<Decoder>(&Decoder::watch_inputs),
           "Starts to sum the products of pairs of inputs of each matrix, over exact forwards.")
      .def(
          "take_input_products",
          [](Decoder& decoder) {
            const Exclusive use(&decoder);
            const auto group = static_cast<size_t>(kFeedbackInputs);
            std::vector<std::map<std::string, nb::ndarray<nb::numpy, float>>> all;
            for (auto& part : decoder.take_input_products()) {
              all.emplace_back();
              for (auto& [name, sums] : part) {
                const size_t columns = sums.size() / group;
                all.back().emplace(name, owned_array(std::move(sums), {columns, group}));
              }
            }
            return all;
          },
          "Ends what watch_inputs() started. Returns the summed products of each input with the\n"
          "inputs of its group, [columns, group], by the name of the matrix's inputs: a "
          "dictionary\n"
          "for each layer, then one for the other matrices. Products with earlier inputs of the\n"
          "group are unspecified.")
      .def("record_bits", exclusively<Decoder>(&Decoder::record_bits),
           "Starts to record a hash of every row after every stage of later forwards.")
      .def(
          "take_bits",
          [](Decoder& decoder) {
            const Exclusive use(&decoder);
            using Hashes = nb::ndarray<nb::numpy, uint64_t>;
            std::vector<std::tuple<int64_t, std::string, Hashes>> all;
            for (BitRecord::Stage& stage : decoder.take_bits()) {
              const size_t rows = stage.rows.size();
              all.emplace_back(stage.layer, stage.name, owned_array(std::move(stage.rows), {rows}));
            }
            return all;
          },
          "Ends what record_bits() started. Returns (layer, stage, uint64 hashes [rows]) of each\n"
          "stage, in order. Layer -1 is before the layers; their number is the output head.")
      .def_prop_ro(
          "partial_head",
          [](const Decoder& decoder) { return &decoder.output_head().partial_head(); },
          nb::rv_policy::reference_internal,
          "The part of the output head that drafts for this model read.")
      .def(
          "logits",
          [](const Decoder& decoder, int64_t first, std::optional<int64_t> last) {
            const Exclusive use(&decoder);
            const int64_t rows = decoder.logit_rows(), end = last.value_or(rows);
            if (first < 0 || first > end || end > rows)
              throw std::invalid_argument("the last forward did not compute these rows of logits");
            return copy_rows(end - first, decoder.spec().vocabulary,
                             [&](int64_t row) { return decoder.logits(first + row); });
          },
          "first"_a = 0, "last"_a = nb::none(),
          "Returns a copy of the last forward's logits from row `first` to before row `last`,\n"
          "[rows, vocabulary] float32.")
      .def(
          "hidden",
          [](const Decoder& decoder) {
            const Exclusive use(&decoder);
            return copy_rows(decoder.hidden_rows(), decoder.spec().hidden,
                             [&](int64_t row) { return decoder.hidden(row); });
          },
          "Returns a copy of the outputs of the final norm, [rows, hidden] float32, that the last\n"
          "forward kept in place of logits; no rows if it kept none.");
}

}  // namespace

void bind_decoder(nb::module_& m) {
  bind_spec(m);
  bind_partial_head(m);
  bind_entry(m);
  bind_forward(m);
}

}  // namespace specqd
