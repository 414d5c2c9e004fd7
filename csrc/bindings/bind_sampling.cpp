// Binds samplers and log-probabilities.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "decode/sampling.h"
#include "decode/sequence.h"
#include "kernels/float_mode.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

// The buffers of functions that get no Sampler. They grow once per thread.
SamplerScratch& shared_scratch() {
  static thread_local SamplerScratch scratch;
  return scratch;
}

nb::ndarray<nb::numpy, float> log_softmax_of(const Row<float>& logits,
                                             const std::optional<std::string>& isa) {
  const Kernels& kernels = kernels_or_default(isa);
  std::vector<float> out(logits.shape(0));
  const FlushSubnormals flush;
  log_softmax(kernels, span_of(logits), out, shared_scratch());
  return owned_array(std::move(out));
}

float find_logprob(const Row<float>& logits, int32_t token, const std::optional<std::string>& isa) {
  if (token < 0 || static_cast<size_t>(token) >= logits.shape(0))
    throw std::invalid_argument("token " + std::to_string(token) + " is not in the vocabulary");
  const Kernels& kernels = kernels_or_default(isa);
  const FlushSubnormals flush;
  return logprob_of(kernels, span_of(logits), token, shared_scratch());
}

std::vector<std::pair<int32_t, float>> find_top_logprobs(const Row<float>& logits, size_t count,
                                                         const std::optional<std::string>& isa) {
  const Kernels& kernels = kernels_or_default(isa);
  const FlushSubnormals flush;
  std::vector<TokenLogprob> top(count);
  top_logprobs(kernels, span_of(logits), top, shared_scratch());
  std::vector<std::pair<int32_t, float>> out;
  for (const auto& entry : top) out.emplace_back(entry.token, entry.logprob);
  return out;
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler", "Samples the token at a position, with fixed parameters.")
      .def(
          "__init__",
          [](Sampler* self, float temperature, float top_p, float min_p, float repetition_penalty,
             float presence_penalty, float frequency_penalty, int32_t top_k, uint64_t seed,
             uint32_t sample, std::vector<int32_t> bias_ids, std::vector<float> bias) {
            if (bias_ids.size() != bias.size())
              throw std::invalid_argument("bias_ids and bias differ in length");
            new (self) Sampler{
                {temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
                 top_k, seed, sample, std::move(bias_ids), std::move(bias)},
                {}};
          },
          nb::kw_only(), "temperature"_a = 0.0f, "top_p"_a = 1.0f, "min_p"_a = 0.0f,
          "repetition_penalty"_a = 1.0f, "presence_penalty"_a = 0.0f, "frequency_penalty"_a = 0.0f,
          "top_k"_a = 0, "seed"_a = 0, "sample"_a = 0, "bias_ids"_a = std::vector<int32_t>{},
          "bias"_a = std::vector<float>{});
  m.def("log_softmax", &log_softmax_of, "logits"_a, "isa"_a = nb::none());
  m.def("logprob_of", &find_logprob, "logits"_a, "token"_a, "isa"_a = nb::none());
  m.def("top_logprobs", &find_top_logprobs, "logits"_a, "count"_a, "isa"_a = nb::none(),
        "Returns the `count` likeliest tokens and their log-probabilities, ties by lowest id.");
}

}  // namespace specqd
