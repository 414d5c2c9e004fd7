// Fuzzes sampling. Any logits, mask and history, with any parameters that a request may have, must
// give an allowed token and its probability, or no token, with the same bits on every instruction
// set.
#include "decode/sampling.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/float_mode.h"
#include "kernels_here.h"

namespace specqd {
namespace {

constexpr int64_t kMostTokens = 3000;

SamplerParams some_params(FuzzedDataProvider& given, int64_t vocabulary) {
  SamplerParams params;
  if (given.ConsumeBool()) params.temperature = given.ConsumeFloatingPointInRange(1e-6f, 100.0f);
  if (given.ConsumeBool()) params.temperature = 1.0f;
  if (given.ConsumeBool()) params.top_p = given.ConsumeFloatingPointInRange(1e-6f, 1.0f);
  if (given.ConsumeBool()) params.min_p = given.ConsumeFloatingPointInRange(0.0f, 1.0f);
  if (given.ConsumeBool())
    params.repetition_penalty = given.ConsumeFloatingPointInRange(0.01f, 100.0f);
  if (given.ConsumeBool()) params.presence_penalty = given.ConsumeFloatingPointInRange(-2.0f, 2.0f);
  if (given.ConsumeBool())
    params.frequency_penalty = given.ConsumeFloatingPointInRange(-2.0f, 2.0f);
  if (given.ConsumeBool())
    params.top_k = given.ConsumeIntegralInRange<int32_t>(
        0, given.ConsumeBool() ? 8 : std::numeric_limits<int32_t>::max());
  params.seed = given.ConsumeIntegral<uint64_t>();
  params.sample = given.ConsumeIntegralInRange<uint32_t>(0, 1023);
  while (given.ConsumeIntegralInRange(0, 3) == 3) {
    params.bias_ids.push_back(
        given.ConsumeIntegralInRange<int32_t>(0, static_cast<int32_t>(vocabulary) - 1));
    params.bias.push_back(given.ConsumeFloatingPointInRange(-100.0f, 100.0f));
  }
  return params;
}

// A few values, repeated: mostly logits that a model may have, sometimes arbitrary bits.
std::vector<float> some_logits(FuzzedDataProvider& given) {
  const auto size = given.ConsumeIntegralInRange<size_t>(1, kMostTokens);
  std::vector<float> seed;
  const auto kinds = given.ConsumeIntegralInRange<size_t>(1, 60);
  while (seed.size() < kinds) {
    const int kind = given.ConsumeIntegralInRange(0, 7);
    seed.push_back(kind == 0   ? std::bit_cast<float>(given.ConsumeIntegral<uint32_t>())
                   : kind == 1 ? given.ConsumeFloatingPoint<float>()
                               : static_cast<float>(given.ConsumeIntegral<int16_t>()) / 1024.0f);
  }
  std::vector<float> logits;
  const bool falls = given.ConsumeBool();  // else there are ties everywhere
  for (size_t i = 0; i < size; ++i)
    logits.push_back(seed[i % kinds] - (falls ? static_cast<float>(i) / 1024.0f : 0.0f));
  return logits;
}

struct Question {
  std::vector<float> logits;
  SamplerParams params;
  std::vector<int32_t> history;
  int64_t prompt_length, position;
  std::vector<uint32_t> mask;  // empty: all tokens are allowed
  size_t top;                  // how many of the likeliest tokens are requested

  explicit Question(FuzzedDataProvider& given) : logits(some_logits(given)) {
    const auto vocabulary = std::ssize(logits);
    const auto last = static_cast<int32_t>(vocabulary) - 1;
    params = some_params(given, vocabulary);
    history.resize(given.ConsumeIntegralInRange<size_t>(0, 100));
    for (int32_t& token : history) token = given.ConsumeIntegralInRange<int32_t>(0, last);
    prompt_length = given.ConsumeIntegralInRange<int64_t>(0, std::ssize(history));
    position = given.ConsumeIntegralInRange<int64_t>(0, int64_t{1} << 40);
    top = given.ConsumeIntegralInRange<size_t>(0, 40);
    if (!given.ConsumeBool()) return;
    const uint32_t words[] = {given.ConsumeIntegral<uint32_t>(), given.ConsumeIntegral<uint32_t>(),
                              given.ConsumeBool() ? 0 : ~0u};
    for (int64_t i = 0; i < (vocabulary + 31) / 32; ++i) mask.push_back(words[i % 3]);
  }

  bool is_allowed(size_t token) const { return mask.empty() || mask[token / 32] >> token % 32 & 1; }
  bool is_changed() const { return !params.bias_ids.empty() || !history.empty(); }
};

struct Answer {
  SampledToken sampled;
  std::vector<uint32_t> bits;  // of all results
};

Answer answer(const Question& question, const Kernels& kernels, SamplerScratch& scratch) {
  const std::vector<float>& logits = question.logits;
  const SampledToken sampled = sample_token(
      kernels, question.params, logits, question.position, question.history, question.prompt_length,
      question.mask.empty() ? nullptr : question.mask.data(), scratch);
  Answer all{sampled,
             {static_cast<uint32_t>(sampled.token), std::bit_cast<uint32_t>(sampled.probability)}};
  std::vector<float> softmax(logits.size());
  log_softmax(kernels, logits, softmax, scratch);
  for (const float each : softmax) all.bits.push_back(std::bit_cast<uint32_t>(each));
  std::vector<TokenLogprob> likeliest(question.top);
  top_logprobs(kernels, logits, likeliest, scratch);
  CHECK(std::ranges::is_sorted(likeliest, std::ranges::greater{}, &TokenLogprob::logprob));
  for (const TokenLogprob& each : likeliest) {
    all.bits.push_back(static_cast<uint32_t>(each.token));
    if (each.token < 0) continue;
    CHECK(each.logprob == softmax[static_cast<size_t>(each.token)]);
    CHECK(logprob_of(kernels, logits, each.token, scratch) == each.logprob);
  }
  return all;
}

void check_sampling(const Question& question) {
  static SamplerScratch scratch;  // used again for other sizes, like that of a sequence
  const Answer expected = answer(question, *kernels_here().back(), scratch);
  for (const Kernels* kernels : kernels_here()) {
    SamplerScratch fresh;
    CHECK(answer(question, *kernels, fresh).bits == expected.bits);
    CHECK(answer(question, *kernels, scratch).bits == expected.bits);
  }
  const SampledToken& sampled = expected.sampled;
  if (sampled.token < 0) {
    for (size_t i = 0; i < question.logits.size(); ++i) {
      const float logit = question.logits[i];
      CHECK(!question.is_allowed(i) || question.is_changed() || std::isnan(logit) ||
            logit == -std::numeric_limits<float>::infinity());
    }
    return;
  }
  const auto token = static_cast<size_t>(sampled.token);
  CHECK(token < question.logits.size() && question.is_allowed(token));
  CHECK(sampled.probability > 0.0f && sampled.probability <= 1.0f);
  const SamplerParams& params = question.params;
  CHECK(params.top_k != 1 || params.temperature == 0.0f || sampled.probability == 1.0f);
}

}  // namespace
}  // namespace specqd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider given(data, size);
  const specqd::FlushSubnormals flush;
  specqd::check_sampling(specqd::Question(given));
  return 0;
}
