// Binds picking and verification.
#include "decode/pick.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "decode/verify.h"
#include "kernels/float_mode.h"
#include "runtime/cpu.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace specqd {
namespace {

template <class T>
using Row = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Row<T>& row) {
  return {row.data(), row.shape(0)};
}

const Kernels& kernels_for(const std::optional<std::string>& isa) {
  const std::string name = isa ? *isa : available_isas().front();
  const Kernels* kernels = kernels_named(name);
  if (!kernels) throw std::invalid_argument(name + ": this machine has no such instruction set");
  return *kernels;
}

// For functions without a Picker; grows once per thread.
PickScratch& shared_scratch() {
  static thread_local PickScratch scratch;
  return scratch;
}

std::pair<int32_t, float> pick_with(Picker& picker, const Row<float>& logits, int64_t position,
                                    const std::optional<Row<int32_t>>& history,
                                    int64_t prompt_length, const std::optional<Row<uint32_t>>& mask,
                                    const std::optional<std::string>& isa) {
  if (mask && mask->shape(0) * 32 < logits.shape(0))
    throw std::invalid_argument("mask has fewer bits than there are logits");
  const Kernels& kernels = kernels_for(isa);
  const FlushSubnormals flush;
  const auto picked = pick(kernels, picker.params, span_of(logits), position,
                           history ? span_of(*history) : std::span<const int32_t>(), prompt_length,
                           mask ? mask->data() : nullptr, picker.scratch);
  return {picked.token, picked.probability};
}

using Masks = nb::ndarray<const uint32_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::pair<std::vector<int32_t>, std::vector<float>> verify_with(
    const Decoder& decoder, int64_t row, const std::vector<int32_t>& proposal, Picker& picker,
    int64_t position, int64_t prompt_length, const std::optional<Row<int32_t>>& history,
    const std::optional<Masks>& masks) {
  const auto rows = static_cast<int64_t>(proposal.size()) + 1;
  if (row < 0 || row + rows > decoder.logit_rows())
    throw std::invalid_argument("the last forward has no such rows of logits");
  if (masks && (static_cast<int64_t>(masks->shape(0)) != rows ||
                static_cast<int64_t>(masks->shape(1)) * 32 < decoder.spec().vocabulary))
    throw std::invalid_argument("masks must be [proposal + 1, vocabulary / 32]");
  const nb::gil_scoped_release released;
  const FlushSubnormals flush;
  Verified verified = verify(
      decoder, picker, proposal,
      {row, position, prompt_length, history ? span_of(*history) : std::span<const int32_t>(),
       masks ? masks->data() : nullptr, masks ? static_cast<int64_t>(masks->shape(1)) : 0});
  return {std::move(verified.tokens), std::move(verified.probabilities)};
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> log_softmax_of(const Row<float>& logits,
                                                          const std::optional<std::string>& isa) {
  const Kernels& kernels = kernels_for(isa);
  auto* out = new float[logits.shape(0)];
  nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  const FlushSubnormals flush;
  log_softmax(kernels, span_of(logits), {out, logits.shape(0)}, shared_scratch());
  return {out, {logits.shape(0)}, owner};
}

float find_logprob(const Row<float>& logits, int32_t token, const std::optional<std::string>& isa) {
  if (token < 0 || static_cast<size_t>(token) >= logits.shape(0))
    throw std::invalid_argument("token " + std::to_string(token) + " is not in the vocabulary");
  const Kernels& kernels = kernels_for(isa);
  const FlushSubnormals flush;
  return logprob_of(kernels, span_of(logits), token, shared_scratch());
}

std::vector<std::pair<int32_t, float>> find_top_logprobs(const Row<float>& logits, size_t count,
                                                         const std::optional<std::string>& isa) {
  const Kernels& kernels = kernels_for(isa);
  const FlushSubnormals flush;
  std::vector<TokenLogprob> top(count);
  top_logprobs(kernels, span_of(logits), top, shared_scratch());
  std::vector<std::pair<int32_t, float>> out;
  for (const auto& entry : top) out.emplace_back(entry.token, entry.logprob);
  return out;
}

}  // namespace

void bind_pick(nb::module_& m) {
  nb::class_<Picker>(m, "Picker", "Picks the token at a position, with fixed parameters.")
      .def(
          "__init__",
          [](Picker* self, float temperature, float top_p, float min_p, float repetition_penalty,
             float presence_penalty, float frequency_penalty, int32_t top_k, uint64_t seed,
             uint32_t sample, std::vector<int32_t> bias_ids, std::vector<float> bias) {
            if (bias_ids.size() != bias.size())
              throw std::invalid_argument("bias_ids and bias differ in length");
            new (self) Picker{
                {temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
                 top_k, seed, sample, std::move(bias_ids), std::move(bias)},
                {}};
          },
          nb::kw_only(), "temperature"_a = 0.0f, "top_p"_a = 1.0f, "min_p"_a = 0.0f,
          "repetition_penalty"_a = 1.0f, "presence_penalty"_a = 0.0f, "frequency_penalty"_a = 0.0f,
          "top_k"_a = 0, "seed"_a = 0, "sample"_a = 0, "bias_ids"_a = std::vector<int32_t>{},
          "bias"_a = std::vector<float>{})
      .def("pick", &pick_with, "logits"_a, "position"_a, "history"_a = nb::none(),
           "prompt_length"_a = 0, "mask"_a = nb::none(), "isa"_a = nb::none(),
           "Returns the token at `position` and its probability; (-1, 0) if no token is allowed.\n"
           "`mask` holds one bit per token, set if the token is allowed.")
      .def(
          "noise_bits",
          [](const Picker& picker, int64_t position, int32_t token) {
            return noise_bits(picker.params, position, token);
          },
          "position"_a, "token"_a, "The 64 random bits behind a token's Gumbel noise.");
  m.def("verify", &verify_with, "decoder"_a, "row"_a, "proposal"_a, "picker"_a, "position"_a,
        "prompt_length"_a, "history"_a = nb::none(), "masks"_a = nb::none(),
        "Returns (tokens, probabilities): the proposal's prefix that equals the picks from the\n"
        "logits from `row`, then the next pick.");
  m.def("gumbel", &gumbel, "bits"_a, "-log(-log(1 - v)), v = (bits + 1/2) / 2**64.");
  m.def("log_softmax", &log_softmax_of, "logits"_a, "isa"_a = nb::none());
  m.def("logprob_of", &find_logprob, "logits"_a, "token"_a, "isa"_a = nb::none());
  m.def("top_logprobs", &find_top_logprobs, "logits"_a, "count"_a, "isa"_a = nb::none(),
        "The `count` likeliest tokens and their log-probabilities, ties by lowest id.");
}

}  // namespace specqd
