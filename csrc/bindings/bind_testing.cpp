// Binds `_native.testing`: functions that only tests and benchmarks call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/exclusive.h"
#include "bindings/fields.h"
#include "decode/context.h"
#include "decode/sampling.h"
#include "decode/sequence.h"
#include "kernels/float_mode.h"
#include "model/attention_plan.h"
#include "model/decoder.h"
#include "model/kv_cache.h"
#include "model/rope.h"
#include "runtime/cpu.h"
#include "runtime/pool.h"
#include "weights/error_feedback.h"
#include "weights/pack.h"

using namespace nanobind::literals;

namespace specqd {

void bind_tested_kernels(nb::module_& m);

// A list of a struct's members names each once, and those of no other struct.
static_assert(std::string_view(kMemberName<&Norm::weight>.data()) == "weight");
static_assert(lists_all_members<Norm>(optional<&Norm::bias>, required<&Norm::weight>));
static_assert(!lists_all_members<Norm>(required<&Norm::weight>));
static_assert(!lists_all_members<Norm>(required<&Norm::weight>, required<&Norm::weight>));
static_assert(!lists_all_members<Norm>(required<&Norm::weight>, required<&FeedForward::down>));
static_assert(!lists_all_members<StateShape>(required<&StateShape::channels>));

namespace {

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

nb::ndarray<nb::numpy, float> factors_of(
    Pool& pool, const nb::ndarray<const float, nb::numpy, nb::ndim<2>, nb::c_contig>& products) {
  constexpr auto kGroup = static_cast<size_t>(kFeedbackInputs);
  if (products.shape(1) != kGroup) throw std::invalid_argument("products must be [columns, group]");
  std::vector<float> factors;
  {
    nb::gil_scoped_release released;
    factors = feedback_factors(pool, {products.data(), products.size()},
                               static_cast<int64_t>(products.shape(0)));
  }
  const size_t padded = factors.size() / kGroup;
  return owned_array(std::move(factors), {padded, kGroup});
}

std::pair<int32_t, float> sample_with(Sampler& sampler, const Row<float>& logits, int64_t position,
                                      const std::optional<Row<int32_t>>& history,
                                      int64_t prompt_length,
                                      const std::optional<Row<uint32_t>>& mask,
                                      const std::optional<std::string>& isa) {
  if (mask && mask->shape(0) * 32 < logits.shape(0))
    throw std::invalid_argument("mask has fewer bits than logits has tokens");
  const Exclusive use(&sampler);
  const Kernels& kernels = kernels_or_default(isa);
  const FlushSubnormals flush;
  const auto sampled =
      sample_token(kernels, sampler.params, span_of(logits), position, span_of(history),
                   prompt_length, mask ? mask->data() : nullptr, sampler.scratch);
  return {sampled.token, sampled.probability};
}

void bind_pages(nb::module_& m) {
  m.attr("CHUNK_POSITIONS") = kChunkPositions;
  m.def("make_writable", exclusively<KvCache>(&KvCache::make_writable), "cache"_a, "sequence"_a,
        "first"_a, "last"_a);
  m.def(
      "page_distance",
      [](const KvCache& cache, int sequence, int64_t page) {
        const KvView view = cache.view(sequence, 0, 0);
        return view.keys(page) - view.keys(0);
      },
      "cache"_a, "sequence"_a, "page"_a,
      "Returns the distance, in words, from the first keys of a sequence to the keys of a page.");
  m.def(
      "write_page_bits",
      [](KvCache& cache, int sequence, int64_t page, const BitVector& bits) {
        if (static_cast<int64_t>(bits.size()) != cache.shape().page_words())
          throw std::invalid_argument("bits must have exactly the words of one page");
        cache.write_page_bits(sequence, page, {bits.data(), bits.size()});
      },
      "cache"_a, "sequence"_a, "page"_a, "bits"_a, "Replaces a page's words.");
  m.def(
      "poison",
      [](KvCache& cache, int sequence, int64_t page, uint16_t bits) {
        const auto words = static_cast<size_t>(cache.shape().page_words());
        cache.write_page_bits(sequence, page, std::vector<uint16_t>(words, bits));
      },
      "cache"_a, "sequence"_a, "page"_a, "bits"_a, "Fills a page with copies of one word.");
}

void bind_draft_pages(nb::module_& m) {
  m.def(
      "page_weights",
      [](const Decoder& decoder, int64_t first, int64_t last) {
        const auto strips = static_cast<size_t>(decoder.strips());
        std::vector<float> weights = decoder.page_weights(first, last);
        const size_t pages = weights.size() / strips;
        return owned_array(std::move(weights), {strips, pages});
      },
      "decoder"_a, "first"_a, "last"_a,
      "Returns the softmax weights of rows [first, last) of the last forward's logits by page,\n"
      "summed over rows and heads: [strips, pages]. The rows must have weighed\n"
      "pages.");
  m.def(
      "weigh_pages",
      [](Context& context, const nb::ndarray<const float, nb::ndim<2>, nb::c_contig>& weights) {
        context.draft_pages().weigh(static_cast<int64_t>(weights.shape(0)),
                                    {weights.data(), weights.data() + weights.size()});
      },
      "context"_a, "weights"_a, "Replaces the weights of a context's pages, [strips, pages].");
  m.def(
      "draft_pages",
      [](Context& context, int64_t strips, int64_t start,
         int64_t most) -> std::optional<std::vector<std::vector<int64_t>>> {
        const PageChoice* const choice = context.draft_pages().choose(strips, start, most);
        if (choice == nullptr) return std::nullopt;
        std::vector<std::vector<int64_t>> pages;
        for (int64_t strip = 0; strip < strips; ++strip) {
          const auto earlier = choice->of_strip(strip);
          pages.emplace_back(earlier.begin(), earlier.end());
          for (int64_t page = choice->recent; page <= start / kPagePositions; ++page)
            pages.back().push_back(page);
        }
        return pages;
      },
      "context"_a, "strips"_a, "start"_a, "most"_a,
      "Returns, by strip, the pages that a draft from position `start` reads; None: all.");
}

using WavePart = std::tuple<int64_t, int64_t, int64_t>;
using WaveRow = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool>;

// The waves of sequences with rows [start, start + count) each.
auto attention_waves(const std::vector<std::pair<int64_t, int64_t>>& starts_counts,
                     std::pair<int64_t, bool> reach, int64_t rows_at_once, int64_t most_parts) {
  AttentionPlan plan({reach.first, reach.second}, rows_at_once, most_parts);
  std::vector<SequenceRows> sequences;
  int64_t rows = 0;
  for (const auto& [start, count] : starts_counts) {
    sequences.push_back({static_cast<int>(sequences.size()), start, count, rows});
    rows += count;
  }
  plan.make(sequences);
  std::vector<std::pair<std::vector<WavePart>, std::vector<WaveRow>>> waves;
  for (int64_t wave = 0; wave < plan.waves(); ++wave) {
    auto& [parts, row_parts] = waves.emplace_back();
    for (const AttentionPlan::Pass& pass : plan.passes(wave))
      for (int64_t i = 0; i < pass.count; ++i)
        parts.emplace_back(sequences[static_cast<size_t>(pass.sequence)].first_row + pass.first + i,
                           pass.chunk, pass.part + i);
    for (int64_t row = 0; row < rows; ++row) {
      const AttentionPlan::RowParts& of = plan.parts_of(wave, row);
      row_parts.emplace_back(of.first, of.stride, of.count, of.end_chunk, of.is_first, of.is_last);
    }
  }
  return std::pair(waves, plan.part_count());
}

void bind_states(nb::module_& m) {
  m.def(
      "saved_state",
      [](const KvCache& cache, int sequence) {
        const int64_t position = cache.states().last_saved(sequence);
        std::vector<uint8_t> bits;
        if (const SlotPtr slot = cache.states().saved(sequence, position))
          bits.assign(slot->bits().begin(), slot->bits().end());
        return std::pair(position, owned_array(std::move(bits)));
      },
      "cache"_a, "sequence"_a,
      "Returns the position of the latest saved state of recurrent layers, and its bytes.");
  m.def(
      "num_slots", [](const KvCache& cache) { return cache.states().slots().total(); }, "cache"_a,
      "Returns the number of slots that have memory.");
  m.def(
      "state_slot",
      [](const KvCache& cache, int sequence) {
        return reinterpret_cast<uintptr_t>(cache.states().of(sequence).committed_slot.get());
      },
      "cache"_a, "sequence"_a,
      "Returns a number that identifies the slot of a sequence's committed state among those in\n"
      "use; 0 if the state is all zeros and has no slot.");
  m.def(
      "state_rows",
      [](const KvCache& cache, int sequence, int64_t first, int64_t last) {
        return owned_array(cache.states().row_bits(sequence, first, last));
      },
      "cache"_a, "sequence"_a, "first"_a, "last"_a,
      "Returns the stored inputs of recurrent layers, as bytes, for positions of one chunk.");
}

void bind_sample_token(nb::module_& m) {
  m.def("sample_token", &sample_with, "sampler"_a, "logits"_a, "position"_a,
        "history"_a = nb::none(), "prompt_length"_a = 0, "mask"_a = nb::none(),
        "isa"_a = nb::none(),
        "Returns the token at `position` and its probability; (-1, 0) if no token is allowed.\n"
        "`mask` holds one bit per token, set if the token is allowed.");
  m.def(
      "noise_bits",
      [](const Sampler& sampler, int64_t position, int32_t token) {
        return noise_bits(sampler.params, position, token);
      },
      "sampler"_a, "position"_a, "token"_a,
      "Returns the 64 random bits of a token's Gumbel noise.");
  m.def("gumbel", &gumbel, "bits"_a, "Returns -log(-log(1 - v)) for v = (bits + 1/2) / 2**64.");
}

void bind_failures(nb::module_& m) {
  m.def(
      "run_and_throw",
      [](Pool& pool, int thread, int barriers) {
        const nb::gil_scoped_release released;
        pool.run([&](Team& team) {
          for (int i = 0; i < 4; ++i) {
            if (team.thread() == thread && i == barriers) throw std::bad_alloc();
            team.share(100, 3, [](int64_t, int64_t) {});
          }
        });
      },
      "pool"_a, "thread"_a, "barriers"_a,
      "Runs a body with four barriers on all threads; the body of `thread` throws bad_alloc after\n"
      "`barriers` of them.");
  m.def(
      "shrinking_ranges",
      [](int64_t count, int64_t least, int64_t threads) {
        const ShrinkingRanges ranges{least};
        std::vector<std::pair<int64_t, int64_t>> all;
        for (Range range; (range = ranges.of(std::ssize(all), count, threads)).first < count;)
          all.emplace_back(range.first, range.last);
        return all;
      },
      "count"_a, "least"_a, "threads"_a,
      "Returns the ranges in which threads claim `count` panels of a product, in order.");
  m.def("memory_left_in", &memory_left_in, "directory"_a,
        "Returns how many bytes the memory limit of a cgroup leaves, given its directory.");
}

}  // namespace

void bind_testing(nb::module_& testing) {
  bind_pages(testing);
  bind_draft_pages(testing);
  testing.def(
      "attention_waves", &attention_waves, "starts_counts"_a, "reach"_a, "rows_at_once"_a,
      "most_parts"_a,
      "Returns, for each wave of attention, the parts of its passes (row, chunk, index) and\n"
      "by row (first, stride, count, end chunk, is first, is last); and the most parts of a\n"
      "wave. `reach` is (window, is causal).");
  bind_states(testing);
  bind_sample_token(testing);
  bind_failures(testing);
  bind_tested_kernels(testing);
  testing.def("feedback_factors", &factors_of, "pool"_a, "products"_a);
  testing.def("unpack", &unpack, "weight"_a, "isa"_a,
              "Returns the BF16 bits of a weight, [rows, columns].");
  testing.def("logit_rows", &Decoder::logit_rows, "decoder"_a,
              "Returns the number of rows of logits of the last forward.");
  testing.def(
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
      "Returns (inverse frequencies [d/2], attention factor, cosines [count, d/2], sines\n"
      "[count, d/2]) of the positions from `first`; d is spec.dims.");
  testing.def("rope_query_scale", &rope_query_scale, "spec"_a, "position"_a,
              "Returns the factor by which the rotated queries of a position are multiplied.");
}

}  // namespace specqd
