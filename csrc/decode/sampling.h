// Picks the token at a position: a function of the logits, the tokens before it, the parameters and
// the position, with the same bits on every instruction set. Knows nothing of models, drafts or
// text. Subnormals count as zero: call it under FlushSubnormals (float_mode.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace specqd {

// temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and penalties of 1, 0, 0 have no effect.
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

// `probability` is the token's among the tokens that remain; at temperature 0, its softmax
// probability after bias, penalties and mask. Token -1 if all are masked, -inf or NaN.
struct SampledToken {
  int32_t token;
  float probability;
};

// Buffers that grow to the vocabulary's size once. For one thread at a time.
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

// Picks the token at absolute `position`. In this order: bias; penalties (repetition over the
// history, then frequency and presence over its part from prompt_length on); mask (bit set:
// allowed; null: all are); temperature; min-p; top-k; top-p; Gumbel noise keyed by seed, sample,
// position and token; the largest, lowest id first. `history` may be empty if there are no
// penalties. A NaN logit counts as -infinity, +infinity as the largest finite number.
SampledToken sample_token(const Kernels& kernels, const SamplerParams& params,
                          std::span<const float> logits, int64_t position,
                          std::span<const int32_t> history, int64_t prompt_length,
                          const uint32_t* mask, SamplerScratch& scratch);

// The log-softmax of raw logits: of all tokens, of one, or of the likeliest, with the same bits.
void log_softmax(const Kernels& kernels, std::span<const float> logits, std::span<float> out,
                 SamplerScratch& scratch);

float logprob_of(const Kernels& kernels, std::span<const float> logits, int32_t token,
                 SamplerScratch& scratch);

// The out.size() likeliest tokens, ties by lowest id; -1 and -infinity if there are fewer.
struct TokenLogprob {
  int32_t token;
  float logprob;
};
void top_logprobs(const Kernels& kernels, std::span<const float> logits,
                  std::span<TokenLogprob> out, SamplerScratch& scratch);

// The 64 random bits of a token's noise, and the standard Gumbel variate -log(-log(1 - v)) for
// v = (bits + 1/2) / 2^64: from -3.8 to 45.1, within a few ulp of double.
uint64_t noise_bits(const SamplerParams& params, int64_t position, int32_t token);
double gumbel(uint64_t bits);

}  // namespace specqd
