// Samples the token at a position. The result depends only on the logits, the tokens before it, the
// parameters and the position, and has the same bits on every instruction set. Knows no models,
// drafts or text. Subnormals count as zero: call these functions under FlushSubnormals
// (float_mode.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace specqd {

// Temperature 0 is greedy. top_k 0, top_p 1, min_p 0, repetition_penalty 1 and the other penalties
// 0 have no effect.
struct SamplerParams {
  float temperature = 0.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t top_k = 0;
  uint64_t seed = 0;
  uint32_t sample = 0;  // index among the n answers to one prompt
  std::vector<int32_t> bias_ids;
  std::vector<float> bias;  // added to the logits of bias_ids
};

// A token and its probability: among the tokens that remain after top-k, top-p and min-p or, at
// temperature 0, its softmax probability after bias, penalties and mask. The token is -1 if the
// logits of all tokens are masked, -infinity or NaN.
struct SampledToken {
  int32_t token;
  float probability;
};

// Buffers that grow once, to the size of the vocabulary. One thread at a time may use them.
class SamplerScratch {
 public:
  void reserve(int64_t vocabulary);

  std::vector<float> processed;  // logits after bias, penalties and mask
  std::vector<float> weights;
  std::vector<float> maxima;
  std::vector<float> candidates;
  std::vector<int32_t> ids;
  std::vector<uint64_t> ranked;
  std::vector<uint32_t> counts;  // of tokens in the history; zero between calls
};

// Samples the token at absolute `position`. The steps are, in this order: bias; penalties
// (repetition over the history, then frequency and presence over its part from prompt_length on);
// mask (one bit per token, set if it is allowed; null: all are allowed); temperature; min-p; top-k;
// top-p; Gumbel noise keyed by seed, sample, position and token; and the largest result, ties by
// lowest id. `history` may be empty if there are no penalties. A NaN logit counts as -infinity,
// +infinity as the largest finite number.
SampledToken sample_token(const Kernels& kernels, const SamplerParams& params,
                          std::span<const float> logits, int64_t position,
                          std::span<const int32_t> history, int64_t prompt_length,
                          const uint32_t* mask, SamplerScratch& scratch);

// The log-softmax of raw logits: of all tokens, of one token, or of the likeliest ones. All three
// give the same bits.
void log_softmax(const Kernels& kernels, std::span<const float> logits, std::span<float> out,
                 SamplerScratch& scratch);

float logprob_of(const Kernels& kernels, std::span<const float> logits, int32_t token,
                 SamplerScratch& scratch);

// Writes the out.size() likeliest tokens, ties by lowest id. If there are fewer, the rest gets
// token -1 and -infinity.
struct TokenLogprob {
  int32_t token;
  float logprob;
};
void top_logprobs(const Kernels& kernels, std::span<const float> logits,
                  std::span<TokenLogprob> out, SamplerScratch& scratch);

// The 64 random bits of a token's noise, and the standard Gumbel variate that they give,
// -log(-log(1 - v)) for v = (bits + 1/2) / 2^64. It is between -3.8 and 45.1, within a few ulp of
// double.
uint64_t noise_bits(const SamplerParams& params, int64_t position, int32_t token);
double gumbel(uint64_t bits);

}  // namespace specqd
