// Picking a token, as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "cpu.h"
#include "float_mode.h"
#include "pick.h"

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

// PickParams with the buffers that picking reuses. One thread at a time, as under the GIL.
class Picker {
 public:
  explicit Picker(PickParams params) : params_(std::move(params)) {
    if (params_.bias_ids.size() != params_.bias.size())
      throw std::invalid_argument("bias_ids and bias differ in length");
  }

  std::pair<int32_t, float> pick(const Row<float>& logits, int64_t position,
                                 const std::optional<Row<int32_t>>& history, int64_t prompt_length,
                                 const std::optional<Row<uint32_t>>& mask,
                                 const std::optional<std::string>& isa) {
    if (mask && mask->shape(0) * 32 < logits.shape(0))
      throw std::invalid_argument("mask has fewer bits than there are logits");
    const Kernels& kernels = kernels_for(isa);
    const FlushSubnormals flush;
    const auto picked = specqd::pick(kernels, params_, span_of(logits), position,
                                     history ? span_of(*history) : std::span<const int32_t>(),
                                     prompt_length, mask ? mask->data() : nullptr, scratch_);
    return {picked.token, picked.probability};
  }

  uint64_t noise_bits(int64_t position, int32_t token) const {
    return specqd::noise_bits(params_, position, token);
  }

 private:
  PickParams params_;
  PickScratch scratch_;
};

nb::ndarray<nb::numpy, float, nb::ndim<1>> log_softmax_of(const Row<float>& logits,
                                                          const std::optional<std::string>& isa) {
  const Kernels& kernels = kernels_for(isa);
  auto* out = new float[logits.shape(0)];
  nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  const FlushSubnormals flush;
  PickScratch scratch;
  log_softmax(kernels, span_of(logits), {out, logits.shape(0)}, scratch);
  return {out, {logits.shape(0)}, owner};
}

float one_logprob(const Row<float>& logits, int32_t token, const std::optional<std::string>& isa) {
  if (token < 0 || static_cast<size_t>(token) >= logits.shape(0))
    throw std::invalid_argument("token " + std::to_string(token) + " is not in the vocabulary");
  const Kernels& kernels = kernels_for(isa);
  const FlushSubnormals flush;
  PickScratch scratch;
  return logprob_of(kernels, span_of(logits), token, scratch);
}

std::vector<std::pair<int32_t, float>> likeliest(const Row<float>& logits, size_t count,
                                                 const std::optional<std::string>& isa) {
  const Kernels& kernels = kernels_for(isa);
  const FlushSubnormals flush;
  PickScratch scratch;
  std::vector<TokenLogprob> top(count);
  top_logprobs(kernels, span_of(logits), top, scratch);
  std::vector<std::pair<int32_t, float>> out;
  for (const auto& entry : top) out.emplace_back(entry.token, entry.logprob);
  return out;
}

}  // namespace

void bind_pick(nb::module_& m) {
  nb::class_<Picker>(m, "Picker", "What the token at a position is, under given parameters.")
      .def(
          "__init__",
          [](Picker* self, float temperature, float top_p, float min_p, float repetition_penalty,
             float presence_penalty, float frequency_penalty, int32_t top_k, uint64_t seed,
             uint32_t sample, std::vector<int32_t> bias_ids, std::vector<float> bias) {
            new (self) Picker({temperature, top_p, min_p, repetition_penalty, presence_penalty,
                               frequency_penalty, top_k, seed, sample, std::move(bias_ids),
                               std::move(bias)});
          },
          nb::kw_only(), "temperature"_a = 0.0f, "top_p"_a = 1.0f, "min_p"_a = 0.0f,
          "repetition_penalty"_a = 1.0f, "presence_penalty"_a = 0.0f, "frequency_penalty"_a = 0.0f,
          "top_k"_a = 0, "seed"_a = 0, "sample"_a = 0, "bias_ids"_a = std::vector<int32_t>{},
          "bias"_a = std::vector<float>{})
      .def("pick", &Picker::pick, "logits"_a, "position"_a, "history"_a = nb::none(),
           "prompt_length"_a = 0, "mask"_a = nb::none(), "isa"_a = nb::none(),
           "The token at `position` and its probability; (-1, 0) if nothing is allowed. `mask` "
           "holds a bit a token, set where it is allowed.")
      .def("noise_bits", &Picker::noise_bits, "position"_a, "token"_a,
           "The 64 random bits behind a token's Gumbel noise.");
  m.def("gumbel", &gumbel, "bits"_a, "-log(-log(1 - v)), v = (bits + 1/2) / 2**64.");
  m.def("log_softmax", &log_softmax_of, "logits"_a, "isa"_a = nb::none());
  m.def("logprob_of", &one_logprob, "logits"_a, "token"_a, "isa"_a = nb::none());
  m.def("top_logprobs", &likeliest, "logits"_a, "count"_a, "isa"_a = nb::none(),
        "The `count` likeliest tokens and their log-probabilities, ties by lowest id.");
}

}  // namespace specqd
