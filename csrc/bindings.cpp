// The module: what Python sees of the core. No arithmetic here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <variant>

#include "bandwidth.h"
#include "cpu.h"
#include "decoder.h"
#include "float_mode.h"
#include "kv_cache.h"
#include "pack.h"
#include "pool.h"
#include "rope.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace specqd {

void bind_kernels(nb::module_& m);
void bind_ngram(nb::module_& m);
void bind_pick(nb::module_& m);

namespace {

using Bits = nb::ndarray<const uint16_t, nb::numpy, nb::device::cpu>;
using BitMatrix = nb::ndarray<const uint16_t, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using BitVector = nb::ndarray<const uint16_t, nb::numpy, nb::ndim<1>, nb::c_contig>;

template <class T>
nb::ndarray<nb::numpy, T> owned_array(std::vector<T> values, std::vector<size_t> shape) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(held->data(), shape.size(), shape.data(), owner);
}

const Kernels& kernels_or_throw(const std::string& name) {
  const Kernels* kernels = kernels_named(name);
  if (kernels == nullptr) throw std::invalid_argument("instruction set not available: " + name);
  return *kernels;
}

const std::vector<std::string> kRopeKinds{"default", "linear", "llama3", "yarn", "longrope"};
const std::vector<std::string> kNormKinds{"rms", "layer"};
const std::vector<std::string> kActivations{"silu", "gelu", "gelu_tanh", "clamped_swiglu"};

// The enumerator of a name, in the order of `names`.
template <class Kind>
Kind kind_of(const std::string& name, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::invalid_argument("unknown kind: " + name);
  return static_cast<Kind>(found - names.begin());
}

// Rows of a matrix whose rows are contiguous one after the other.
RowSource row_source(const BitMatrix& matrix) {
  if (matrix.stride(1) != 1 || matrix.stride(0) != static_cast<int64_t>(matrix.shape(1)))
    throw std::invalid_argument("weights must be C-contiguous");
  return {reinterpret_cast<const uint8_t*>(matrix.data()), static_cast<int64_t>(matrix.shape(0))};
}

// A packed weight, or (source, row, column) of the first weight that is not finite.
std::variant<std::shared_ptr<PackedWeight>, std::tuple<int64_t, int64_t, int64_t>> pack(
    Pool& pool, const std::string& isa, const std::vector<BitMatrix>& sources, bool interleaved,
    int rule) {
  std::vector<RowSource> rows;
  for (const BitMatrix& source : sources) rows.push_back(row_source(source));
  const auto columns = static_cast<int64_t>(sources.at(0).shape(1));
  for (const BitMatrix& source : sources)
    if (static_cast<int64_t>(source.shape(1)) != columns)
      throw std::invalid_argument("matrices packed together need equal columns");
  PackError error;
  std::shared_ptr<PackedWeight> weight;
  {
    nb::gil_scoped_release released;
    weight = PackedWeight::pack(pool, kernels_or_throw(isa), rows, columns,
                                {interleaved, static_cast<ScaleRule>(rule)}, &error);
  }
  if (weight == nullptr) return std::tuple(error.source, error.row, error.column);
  return weight;
}

nb::ndarray<nb::numpy, uint16_t> unpack(const PackedWeight& weight, const std::string& isa) {
  const Kernels& kernels = kernels_or_throw(isa);
  const auto rows = static_cast<size_t>(weight.rows());
  const auto columns = static_cast<size_t>(weight.columns());
  std::vector<uint16_t> bits(rows * columns);
  {
    nb::gil_scoped_release released;
    for (size_t row = 0; row < rows; ++row)
      weight.read_row(kernels, static_cast<int64_t>(row), bits.data() + row * columns);
  }
  return owned_array(std::move(bits), {rows, columns});
}

std::map<std::string, size_t> plane_bytes(const PackedWeight& weight) {
  const PackedWeight::Bytes bytes = weight.bytes();
  std::map<std::string, size_t> planes;
  planes["codes"] = bytes.codes;
  planes["scales"] = bytes.scales;
  planes["residuals"] = bytes.residuals;
  planes["patches"] = bytes.patches;
  planes["plain"] = bytes.plain;
  return planes;
}

void bind_machine(nb::module_& m) {
  m.def("available_isas", &available_isas);
  m.def("amx_refusal", &amx_refusal);
  m.def("usable_threads", &usable_threads);
  m.def("usable_memory", &usable_memory);
  m.def("cpu_model", &cpu_model);
  nb::class_<Pool>(m, "Pool")
      .def(
          "__init__",
          [](Pool* self, int threads) {
            if (threads < 1) throw std::invalid_argument("a pool needs a thread");
            new (self) Pool(threads);
          },
          "threads"_a)
      .def_prop_ro("threads", &Pool::threads);
  m.def(
      "read_seconds",
      [](Pool& pool, const std::string& isa, size_t bytes, int repeats) {
        const nb::gil_scoped_release released;
        return measure_read_seconds(pool, kernels_or_throw(isa), bytes, repeats);
      },
      "pool"_a, "isa"_a, "bytes"_a, "repeats"_a,
      "Seconds of each of `repeats` readings of `bytes` bytes by all threads.");
}

void bind_weights(nb::module_& m) {
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_prop_ro("rows", &PackedWeight::rows)
      .def_prop_ro("columns", &PackedWeight::columns)
      .def_prop_ro("is_nested", &PackedWeight::is_nested)
      .def_prop_ro("patch_count", &PackedWeight::patch_count)
      .def("plane_bytes", &plane_bytes)
      .def("unpack", &unpack, "isa"_a);
  m.def("pack", &pack, "pool"_a, "isa"_a, "sources"_a, "interleaved"_a, "rule"_a);
}

void bind_rope(nb::module_& m) {
  nb::class_<RopeSpec>(m, "RopeSpec")
      .def(
          "__init__",
          [](RopeSpec* self, const std::string& kind, int dims, double theta, double factor,
             double original_max_positions, double low_freq_factor, double high_freq_factor,
             double beta_fast, double beta_slow, double attention_factor, double mscale,
             double mscale_all_dim, bool truncate, std::vector<float> factors) {
            if (kind == "longrope" && std::ssize(factors) != dims / 2)
              throw std::invalid_argument("longrope needs a factor for each pair");
            new (self) RopeSpec{kind_of<RopeKind>(kind, kRopeKinds),
                                dims,
                                theta,
                                factor,
                                original_max_positions,
                                low_freq_factor,
                                high_freq_factor,
                                beta_fast,
                                beta_slow,
                                attention_factor,
                                mscale,
                                mscale_all_dim,
                                truncate,
                                std::move(factors)};
          },
          "kind"_a, "dims"_a, "theta"_a, "factor"_a, "original_max_positions"_a,
          "low_freq_factor"_a, "high_freq_factor"_a, "beta_fast"_a, "beta_slow"_a,
          "attention_factor"_a, "mscale"_a, "mscale_all_dim"_a, "truncate"_a, "factors"_a);
  m.def(
      "rope_tables",
      [](const RopeSpec& spec, int64_t first, int64_t count) {
        const auto half = static_cast<size_t>(spec.dims / 2), n = static_cast<size_t>(count);
        std::vector<float> frequencies(half), cosines(n * half), sines(n * half);
        const float factor = rope_inverse_frequencies(spec, frequencies);
        rope_tables(frequencies, factor, first, count, cosines.data(), sines.data());
        return std::tuple(owned_array(std::move(frequencies), {half}), factor,
                          owned_array(std::move(cosines), {n, half}),
                          owned_array(std::move(sines), {n, half}));
      },
      "spec"_a, "first"_a, "count"_a,
      "(inverse frequencies [d/2], attention factor, cosines [count, d/2], sines [count, d/2]).");
}

void bind_cache(nb::module_& m) {
  using Tokens = std::vector<int32_t>;
  m.attr("PAGE_POSITIONS") = kPagePositions;
  m.attr("CHUNK_POSITIONS") = kChunkPositions;
  nb::class_<KvCache>(m, "KvCache")
      .def(
          "__init__",
          [](KvCache* self, const Decoder& decoder, int64_t pages) {
            new (self) KvCache(decoder.kv_shape(), pages);
          },
          "decoder"_a, "pages"_a)
      .def_prop_ro("total_pages", &KvCache::total_pages)
      .def_prop_ro("free_pages", &KvCache::free_pages)
      .def_prop_ro("page_bytes",
                   [](const KvCache& cache) { return cache.shape().page_words() * 2; })
      .def("create", &KvCache::create)
      .def("release", &KvCache::release, "sequence"_a)
      .def("fork", &KvCache::fork, "sequence"_a, "length"_a)
      .def("make_writable", &KvCache::make_writable, "sequence"_a, "first"_a, "last"_a)
      .def(
          "attach_prefix",
          [](KvCache& cache, int sequence, const Tokens& tokens, uint64_t salt) {
            return cache.attach_prefix(sequence, tokens, salt);
          },
          "sequence"_a, "tokens"_a, "salt"_a = 0)
      .def(
          "publish",
          [](KvCache& cache, int sequence, const Tokens& tokens, uint64_t salt) {
            cache.publish(sequence, tokens, salt);
          },
          "sequence"_a, "tokens"_a, "salt"_a = 0)
      .def("release_behind", &KvCache::release_behind, "sequence"_a, "position"_a)
      .def("has_page", &KvCache::has_page, "sequence"_a, "page"_a)
      .def(
          "page_bits",
          [](const KvCache& cache, int sequence, int64_t page) {
            const auto words = static_cast<size_t>(cache.shape().page_words());
            const uint16_t* begin = cache.keys(sequence, page, 0, 0);
            return owned_array(std::vector<uint16_t>(begin, begin + words), {words});
          },
          "sequence"_a, "page"_a, "A copy of a page's words, for tests.")
      .def(
          "write_page_bits",
          [](KvCache& cache, int sequence, int64_t page, const BitVector& bits) {
            if (static_cast<int64_t>(bits.size()) != cache.shape().page_words())
              throw std::invalid_argument("a page has another number of words");
            std::copy_n(bits.data(), bits.size(), cache.keys(sequence, page, 0, 0));
          },
          "sequence"_a, "page"_a, "bits"_a, "Replaces a page's words, for tests.")
      .def(
          "poison",
          [](KvCache& cache, int sequence, int64_t page, uint16_t bits) {
            uint16_t* begin = cache.keys(sequence, page, 0, 0);
            std::fill(begin, begin + cache.shape().page_words(), bits);
          },
          "sequence"_a, "page"_a, "bits"_a, "Fills a page, for tests.");
}

Vector vector_of(const std::optional<BitVector>& bits) {
  if (!bits) return {};
  return Vector(bits->data(), bits->data() + bits->size());
}

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
  using OptionalNorm = std::optional<Norm>;
  const auto norm_of = [](const OptionalNorm& norm) { return norm ? *norm : Norm{}; };
  nb::class_<LayerWeights>(m, "LayerWeights")
      .def(
          "__init__",
          [norm_of](LayerWeights* self, const OptionalNorm& attention_norm,
                    const OptionalNorm& attention_post_norm, const OptionalNorm& feed_forward_norm,
                    const OptionalNorm& feed_forward_post_norm, const OptionalNorm& query_norm,
                    const OptionalNorm& key_norm, Weight query_key_value, Weight output,
                    const Optional& query_key_value_bias, const Optional& output_bias,
                    const Optional& sinks, std::vector<FeedForward> feed_forwards, Weight router,
                    const Optional& router_bias, int64_t window, int rope) {
            new (self) LayerWeights{norm_of(attention_norm),
                                    norm_of(attention_post_norm),
                                    norm_of(feed_forward_norm),
                                    norm_of(feed_forward_post_norm),
                                    norm_of(query_norm),
                                    norm_of(key_norm),
                                    query_key_value,
                                    output,
                                    vector_of(query_key_value_bias),
                                    vector_of(output_bias),
                                    vector_of(sinks),
                                    std::move(feed_forwards),
                                    router,
                                    vector_of(router_bias),
                                    window,
                                    rope};
          },
          nb::kw_only(), "attention_norm"_a.none(), "attention_post_norm"_a.none(),
          "feed_forward_norm"_a.none(), "feed_forward_post_norm"_a.none(), "query_norm"_a.none(),
          "key_norm"_a.none(), "query_key_value"_a, "output"_a, "query_key_value_bias"_a.none(),
          "output_bias"_a.none(), "sinks"_a.none(), "feed_forwards"_a, "router"_a.none(),
          "router_bias"_a.none(), "window"_a, "rope"_a);
}

void bind_spec(nb::module_& m) {
  nb::class_<DecoderSpec>(m, "DecoderSpec")
      .def(
          "__init__",
          [](DecoderSpec* self, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim,
             int64_t vocabulary, std::vector<RopeSpec> ropes, float norm_epsilon,
             const std::string& norm, float norm_offset, bool norms_whole_rows,
             const std::string& activation, bool is_gated, bool is_parallel, float attention_scale,
             float attention_cap, float logit_cap, float embedding_scale, float residual_scale,
             float logit_scale, int64_t experts_per_token, bool shares_of_chosen) {
            new (self) DecoderSpec{hidden,
                                   heads,
                                   kv_heads,
                                   head_dim,
                                   vocabulary,
                                   std::move(ropes),
                                   norm_epsilon,
                                   kind_of<NormKind>(norm, kNormKinds),
                                   norm_offset,
                                   norms_whole_rows,
                                   kind_of<Activation>(activation, kActivations),
                                   is_gated,
                                   is_parallel,
                                   attention_scale,
                                   attention_cap,
                                   logit_cap,
                                   embedding_scale,
                                   residual_scale,
                                   logit_scale,
                                   experts_per_token,
                                   shares_of_chosen};
          },
          nb::kw_only(), "hidden"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "vocabulary"_a,
          "ropes"_a, "norm_epsilon"_a, "norm"_a, "norm_offset"_a, "norms_whole_rows"_a,
          "activation"_a, "is_gated"_a, "is_parallel"_a, "attention_scale"_a, "attention_cap"_a,
          "logit_cap"_a, "embedding_scale"_a, "residual_scale"_a, "logit_scale"_a,
          "experts_per_token"_a, "shares_of_chosen"_a);
}

void bind_decoder(nb::module_& m) {
  nb::class_<Decoder>(m, "Decoder")
      .def(
          "__init__",
          [](Decoder* self, std::shared_ptr<Pool> pool, const std::string& isa,
             const DecoderSpec& spec, const std::vector<LayerWeights>& layers,
             const Norm& final_norm, std::shared_ptr<PackedWeight> head,
             const std::optional<BitMatrix>& embedding, int64_t max_rows) {
            DecoderWeights weights{layers, final_norm, std::move(head),
                                   embedding ? row_source(*embedding).data : nullptr};
            new (self)
                Decoder(spec, std::move(weights), std::move(pool), kernels_or_throw(isa), max_rows);
          },
          nb::kw_only(), "pool"_a, "isa"_a, "spec"_a, "layers"_a, "final_norm"_a, "head"_a,
          "embedding"_a.none(), "max_rows"_a, nb::keep_alive<1, 8>())
      .def_prop_ro("max_rows", &Decoder::max_rows)
      .def(
          "weight_bytes",
          [](const Decoder& decoder, bool is_draft) {
            return decoder.weight_bytes(is_draft ? Reading::kDraft : Reading::kExact);
          },
          "is_draft"_a)
      .def(
          "forward",
          [](Decoder& decoder, bool is_draft, const KvCache& cache,
             const std::vector<int32_t>& tokens, const std::vector<int>& sequences,
             const std::vector<int64_t>& starts, const std::vector<int64_t>& counts,
             const std::vector<int64_t>& logits) {
            std::vector<ForwardRows> rows;
            int64_t total = 0;
            for (size_t i = 0; i < sequences.size(); ++i) {
              rows.push_back({sequences[i], starts.at(i), counts.at(i), logits.at(i)});
              total += counts[i];
            }
            if (total != static_cast<int64_t>(tokens.size()) || total > decoder.max_rows())
              throw std::invalid_argument("rows do not match the tokens, or are too many");
            for (const ForwardRows& part : rows)
              if (!decoder.has_pages(cache, part))
                throw std::invalid_argument("the cache lacks pages that the rows need");
            for (const int32_t token : tokens)
              if (token < 0 || token >= decoder.spec().vocabulary)
                throw std::invalid_argument("token id outside the vocabulary");
            const nb::gil_scoped_release released;
            decoder.forward(is_draft ? Reading::kDraft : Reading::kExact, cache, tokens, rows);
          },
          "is_draft"_a, "cache"_a, "tokens"_a, "sequences"_a, "starts"_a, "counts"_a, "logits"_a)
      .def_prop_ro("logit_rows", &Decoder::logit_rows)
      .def(
          "logits",
          [](const Decoder& decoder) {
            const auto rows = static_cast<size_t>(decoder.logit_rows());
            const auto width = static_cast<size_t>(decoder.spec().vocabulary);
            std::vector<float> copy(rows * width);
            for (size_t i = 0; i < rows; ++i) {
              const auto row = decoder.logits(static_cast<int64_t>(i));
              std::copy(row.begin(), row.end(), copy.begin() + static_cast<int64_t>(i * width));
            }
            return owned_array(std::move(copy), {rows, width});
          },
          "A copy of the last forward's logits, [rows, vocabulary] float32.");
}

}  // namespace
}  // namespace specqd

NB_MODULE(_native, m) {
  m.doc() = "SpecQD's native core.";
  specqd::bind_machine(m);
  specqd::bind_rope(m);
  specqd::bind_weights(m);
  specqd::bind_cache(m);
  specqd::bind_layers(m);
  specqd::bind_spec(m);
  specqd::bind_decoder(m);
  specqd::bind_ngram(m);
  specqd::bind_pick(m);
  specqd::bind_kernels(m);
}
