#include "decode/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>

#include "kernels/sampling_kernels.h"
#include "kernels/scalar_math.h"

namespace specqd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// --- Ranks: larger logits first, then lower ids --------------------------------------------------

// The key of a token; larger keys rank higher. Zeros of both signs are equal.
uint64_t rank_key(float logit, int32_t token) {
  const uint32_t bits = std::bit_cast<uint32_t>(std::min(logit, kLargestLogit) + 0.0f);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~token);
}

int32_t token_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

// Fills scratch.ranked with the k highest-ranked tokens, of which the lowest comes last, and then
// at least all tokens that tie with it. Returns k, or the number of tokens if there are fewer.
// Overwrites scratch.maxima.
size_t rank_highest(const SamplingKernels& kernels, std::span<const float> logits, int64_t k,
                    SamplerScratch& scratch) {
  float least = -kLargestLogit;
  if (k <= static_cast<int64_t>(scratch.maxima.size())) {
    // Each maximum belongs to a different token, so the k-th is a lower bound of the k-th logit.
    const auto kth = scratch.maxima.begin() + (k - 1);
    std::nth_element(scratch.maxima.begin(), kth, scratch.maxima.end(), std::greater<>());
    least = std::clamp(*kth, -kLargestLogit, kLargestLogit);
  }
  const int64_t count = kernels.collect(logits.data(), static_cast<int64_t>(logits.size()), least,
                                        kInfinity, scratch.ids.data());
  auto& ranked = scratch.ranked;
  ranked.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < ranked.size(); ++i)
    ranked[i] = rank_key(logits[static_cast<size_t>(scratch.ids[i])], scratch.ids[i]);
  const int64_t found = std::min(k, count);
  std::nth_element(ranked.begin(), ranked.begin() + (found - 1), ranked.end(), std::greater<>());
  return static_cast<size_t>(found);
}

// --- The logits to sample from -------------------------------------------------------------------

bool has_penalties(const SamplerParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

void penalise(const SamplerParams& params, std::span<const int32_t> history, int64_t prompt_length,
              std::span<float> logits, std::span<uint32_t> counts) {
  constexpr uint32_t kSeen = 1u << 31;  // lower bits count the token's occurrences in the output
  const auto is_known = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  for (size_t i = 0; i < history.size(); ++i) {
    if (!is_known(history[i])) continue;
    uint32_t& count = counts[static_cast<size_t>(history[i])];
    count = (count | kSeen) + (static_cast<int64_t>(i) >= prompt_length ? 1 : 0);
  }
  for (const int32_t token : history) {
    if (!is_known(token)) continue;
    const auto id = static_cast<size_t>(token);
    if (counts[id] == 0) continue;  // an earlier occurrence was penalised
    const uint32_t in_output = counts[id] & ~kSeen;
    counts[id] = 0;
    float& logit = logits[id];
    if (params.repetition_penalty != 1.0f)
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit = logit - params.frequency_penalty * static_cast<float>(in_output);
    if (in_output > 0) logit = logit - params.presence_penalty;
  }
}

// Applies bias, penalties and mask. Returns scratch.processed, or `logits` if nothing changes them.
std::span<const float> process(const SamplingKernels& kernels, const SamplerParams& params,
                               std::span<const float> logits, std::span<const int32_t> history,
                               int64_t prompt_length, const uint32_t* mask,
                               SamplerScratch& scratch) {
  const auto size = static_cast<int64_t>(logits.size());
  const bool is_changed = !params.bias_ids.empty() || (has_penalties(params) && !history.empty());
  if (!is_changed && !mask) return logits;
  const std::span<float> processed(scratch.processed.data(), logits.size());
  if (is_changed) {
    std::copy(logits.begin(), logits.end(), processed.begin());
    for (size_t i = 0; i < params.bias_ids.size(); ++i) {
      const int32_t token = params.bias_ids[i];
      if (token >= 0 && token < size) processed[static_cast<size_t>(token)] += params.bias[i];
    }
    if (has_penalties(params)) penalise(params, history, prompt_length, processed, scratch.counts);
  }
  if (mask) {
    kernels.mask(is_changed ? processed.data() : logits.data(), size, mask, processed.data());
  }
  return processed;
}

// The largest logit, at most kLargestLogit as in weigh(); -infinity if no token may be sampled.
// Fills scratch.maxima.
float find_maximum(const SamplingKernels& kernels, std::span<const float> logits,
                   SamplerScratch& scratch) {
  scratch.reserve(static_cast<int64_t>(logits.size()));
  if (logits.empty()) return -kInfinity;
  kernels.maxima(logits.data(), static_cast<int64_t>(logits.size()), scratch.maxima.data());
  float maximum = -kInfinity;
  for (const float m : scratch.maxima) maximum = m > maximum ? m : maximum;
  return std::min(maximum, kLargestLogit);
}

// The lowest id whose logit is the maximum; scratch.maxima must be filled.
int32_t find_first(std::span<const float> logits, float maximum, const SamplerScratch& scratch) {
  size_t i = 0;
  while (!(scratch.maxima[i] >= maximum)) ++i;
  size_t id = i / 16 * static_cast<size_t>(kMaximaBlock);
  while (!(logits[id] >= maximum)) ++id;
  return static_cast<int32_t>(id);
}

// --- The tokens that remain after top-k, top-p and min-p -----------------------------------------

uint64_t mass_of(float weight) { return static_cast<uint64_t>(double{weight} * kMassOfOne); }

// Weighs only the k highest-ranked tokens and returns their mass.
uint64_t weigh_highest(const SamplingKernels& kernels, std::span<const float> logits, int64_t k,
                       Weighing by, SamplerScratch& scratch) {
  const size_t kept = rank_highest(kernels, logits, k, scratch);
  const float least = logits[static_cast<size_t>(token_of(scratch.ranked[kept - 1]))];
  by.least_logit = std::min(least, kLargestLogit);
  float* weights = scratch.weights.data();
  uint64_t mass = kernels.weigh(logits.data(), static_cast<int64_t>(logits.size()), by, weights);
  for (size_t i = kept; i < scratch.ranked.size(); ++i) {  // tokens that tie with the last
    const auto id = static_cast<size_t>(token_of(scratch.ranked[i]));
    mass -= mass_of(weights[id]);
    weights[id] = 0.0f;
  }
  return mass;
}

// The largest weight such that the weights at or above it have a mass of `limit` or more. Bisects
// the bits of floats from 2^-40, the least weight with a mass, to 1. Every few steps, weights
// outside the interval are dropped.
float find_nucleus_weight(const SamplingKernels& kernels, std::span<const float> weights,
                          uint64_t limit, SamplerScratch& scratch) {
  constexpr int kSteps = 6;
  auto low = std::bit_cast<uint32_t>(0x1p-40f), high = std::bit_cast<uint32_t>(1.0f) + 1;
  std::span<const float> inside = weights;
  uint64_t above = 0;  // mass of weights >= high
  uint64_t left_behind = 0;
  while (high - low > 1) {
    for (int step = 0; step < kSteps && high - low > 1; ++step) {
      const uint32_t middle = low + (high - low) / 2;
      const uint64_t mass =
          left_behind + kernels.mass_from(inside.data(), static_cast<int64_t>(inside.size()),
                                          std::bit_cast<float>(middle));
      if (mass >= limit) {
        low = middle;
      } else {
        high = middle;
        above = mass;
      }
    }
    const int64_t count = kernels.collect(inside.data(), static_cast<int64_t>(inside.size()),
                                          std::bit_cast<float>(low), std::bit_cast<float>(high - 1),
                                          scratch.ids.data());
    // Indices ascend, so values may move down in place.
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      scratch.candidates[i] = inside[static_cast<size_t>(scratch.ids[i])];
    inside = {scratch.candidates.data(), static_cast<size_t>(count)};
    left_behind = above;
  }
  return std::bit_cast<float>(low);
}

// Applies top-p to scratch.weights, which have this mass; returns the mass that remains. Tokens are
// ranked by weight, then by lowest id. A token remains if the tokens before it have less than top_p
// of the mass.
uint64_t keep_nucleus(const SamplingKernels& kernels, float top_p, uint64_t mass, int64_t size,
                      SamplerScratch& scratch) {
  float* weights = scratch.weights.data();
  const double share = scalar::ceil(double{top_p} * static_cast<double>(mass));
  const uint64_t limit = std::min(mass, static_cast<uint64_t>(share));
  const float least =
      find_nucleus_weight(kernels, {weights, static_cast<size_t>(size)}, limit, scratch);
  kernels.drop_below(weights, size, least);
  const float next = std::bit_cast<float>(std::bit_cast<uint32_t>(least) + 1);
  uint64_t kept = kernels.mass_from(weights, size, next);
  const int64_t ties = kernels.collect(weights, size, least, least, scratch.ids.data());
  for (int64_t i = 0; i < ties; ++i) {
    if (kept < limit)
      kept += mass_of(least);
    else
      weights[scratch.ids[static_cast<size_t>(i)]] = 0.0f;
  }
  return kept;
}

// Fills scratch.weights for sampling; returns their mass. Overwrites scratch.maxima.
uint64_t weigh_remaining(const SamplingKernels& kernels, const SamplerParams& params,
                         std::span<const float> logits, Weighing by, SamplerScratch& scratch) {
  const auto size = static_cast<int64_t>(logits.size());
  if (params.min_p > 0.0f)
    by.least_z = std::max(kLeastZ, static_cast<float>(scalar::log(double{params.min_p})));
  const uint64_t mass = params.top_k > 0 && params.top_k < size
                            ? weigh_highest(kernels, logits, params.top_k, by, scratch)
                            : kernels.weigh(logits.data(), size, by, scratch.weights.data());
  if (params.top_p >= 1.0f) return mass;
  return keep_nucleus(kernels, params.top_p, mass, size, scratch);
}

// --- Noise ---------------------------------------------------------------------------------------

NoiseStream noise_stream(const SamplerParams& params, int64_t position) {
  // Word 3 of the counter: bit 0 is 0 for the leading half of the noise and 1 for the trailing one.
  const auto at = static_cast<uint64_t>(position);
  return {{static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)},
          {static_cast<uint32_t>(at), params.sample, static_cast<uint32_t>(at >> 32) << 1}};
}

uint32_t philox_word(const NoiseStream& stream, int32_t token, uint32_t half) {
  const PhiloxPlace place = philox_place(token);
  std::array<uint32_t, 4> c = {place.counter, stream.counter[0], stream.counter[1],
                               stream.counter[2] | half};
  uint32_t key0 = stream.key[0], key1 = stream.key[1];
  for (int i = 0; i < kPhiloxRounds; ++i) {
    const uint64_t a = uint64_t{c[0]} * kPhiloxMultiplier[0];
    const uint64_t b = uint64_t{c[2]} * kPhiloxMultiplier[1];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += kPhiloxKeyStep[0];
    key1 += kPhiloxKeyStep[1];
  }
  return c[static_cast<size_t>(place.word)];
}

uint64_t noise_bits(const NoiseStream& stream, int32_t token) {
  return uint64_t{philox_word(stream, token, 0)} << 32 | philox_word(stream, token, 1);
}

// -log(1 - v) for v = (bits + 1/2) / 2^64: a standard exponential variate.
double exponential(uint64_t bits) {
  const double v = (static_cast<double>(bits) + 0.5) * 0x1p-64;
  if (v > 0.29) return -scalar::log((static_cast<double>(~bits) + 0.5) * 0x1p-64);
  // 2 atanh(f) for f = v / (2 - v) < 0.17, which is accurate for any small v.
  constexpr double kTail[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                              1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  const double f = v / (2.0 - v), square = f * f;
  return 2.0 * f + 2.0 * f * (square * scalar::polynomial(square, kTail));
}

// A token that remains. It is the likeliest one, unless top-p dropped that because its weight ties
// with those of lower ids. Weights are rounded, so tokens with unequal logits may tie.
int32_t find_remaining(int32_t likeliest, const SamplerScratch& scratch) {
  if (scratch.weights[static_cast<size_t>(likeliest)] > 0.0f) return likeliest;
  const auto first = std::ranges::find_if(scratch.weights, [](float w) { return w > 0.0f; });
  return static_cast<int32_t>(first - scratch.weights.begin());
}

// The argmax of z + Gumbel noise g over the tokens of positive weight, ties by lowest id, found by
// an exponential race: z + g is largest where e = exp(-g) is smallest relative to the weight e^z,
// and e = -log(1 - v) >= v. A token with v > weight * (e / weight of the best so far) has lost, so
// its logarithms are not computed. This is the case for nearly all tokens.
int32_t race(const SamplingKernels& kernels, std::span<const float> logits, const Weighing& by,
             int32_t first, const NoiseStream& stream, SamplerScratch& scratch) {
  const float* weights = scratch.weights.data();
  int32_t winner = -1;
  double best = 0.0;
  float bound = 0.0f;
  const auto enter = [&](int32_t token) {
    const auto id = static_cast<size_t>(token);
    const float z = (std::min(logits[id], kLargestLogit) - by.maximum) * by.inverse_temperature;
    const double e = exponential(noise_bits(stream, token));
    const double score = double{z} - scalar::log(e);
    if (winner >= 0 && !(score > best || (score == best && token < winner))) return;
    winner = token;
    best = score;
    // The factor 1.001 covers the rounding of weights, which are within a few ulp of e^z.
    bound = static_cast<float>(e / double{weights[id]} * 1.001);
  };
  enter(first);
  const int64_t end = (static_cast<int64_t>(logits.size()) + kNoiseGroup - 1) & -kNoiseGroup;
  // Each chunk is as long as all before it, because the bound falls as more mass has been seen.
  for (int64_t begin = 0, length = kNoiseGroup; begin < end; length = begin) {
    const int64_t stop = std::min(end, begin + length);
    const int64_t count =
        kernels.find_survivors(weights, begin, stop, stream, bound, scratch.ids.data());
    for (int64_t i = 0; i < count; ++i) enter(scratch.ids[static_cast<size_t>(i)]);
    begin = stop;
  }
  return winner;
}

// The log of the sum of e^(logit - maximum), rounded once.
float log_sum(const SamplingKernels& kernels, std::span<const float> logits, float maximum) {
  const Weighing by{maximum, 1.0f, -kLargestLogit, kLeastZ};
  const uint64_t mass =
      kernels.weigh(logits.data(), static_cast<int64_t>(logits.size()), by, nullptr);
  return static_cast<float>(scalar::log(static_cast<double>(mass) / kMassOfOne));
}

}  // namespace

void SamplerScratch::reserve(int64_t vocabulary) {
  const auto padded = static_cast<size_t>((vocabulary + kNoiseGroup - 1) & -kNoiseGroup);
  maxima.resize(static_cast<size_t>((vocabulary + kMaximaBlock - 1) / kMaximaBlock * 16));
  if (weights.size() >= padded) return;
  processed.resize(padded);
  weights.resize(padded);
  ids.resize(padded);
  candidates.resize(padded);
  ranked.reserve(padded);
  counts.resize(padded);
}

SampledToken sample_token(const Kernels& kernels, const SamplerParams& params,
                          std::span<const float> logits, int64_t position,
                          std::span<const int32_t> history, int64_t prompt_length,
                          const uint32_t* mask, SamplerScratch& scratch) {
  const SamplingKernels& loops = *kernels.sampling;
  scratch.reserve(static_cast<int64_t>(logits.size()));
  const std::span<const float> processed =
      process(loops, params, logits, history, prompt_length, mask, scratch);
  const float maximum = find_maximum(loops, processed, scratch);
  if (maximum == -kInfinity) return {-1, 0.0f};
  const int32_t likeliest = find_first(processed, maximum, scratch);

  Weighing by{maximum, 1.0f, -kLargestLogit, kLeastZ};
  if (params.temperature == 0.0f) {
    const uint64_t mass =
        loops.weigh(processed.data(), static_cast<int64_t>(processed.size()), by, nullptr);
    return {likeliest, static_cast<float>(kMassOfOne / static_cast<double>(mass))};
  }
  by.inverse_temperature = 1.0f / params.temperature;
  const uint64_t mass = weigh_remaining(loops, params, processed, by, scratch);
  const int32_t token = race(loops, processed, by, find_remaining(likeliest, scratch),
                             noise_stream(params, position), scratch);
  const double weight = scratch.weights[static_cast<size_t>(token)];
  return {token, static_cast<float>(weight * kMassOfOne / static_cast<double>(mass))};
}

void log_softmax(const Kernels& kernels, std::span<const float> logits, std::span<float> out,
                 SamplerScratch& scratch) {
  const float maximum = find_maximum(*kernels.sampling, logits, scratch);
  if (maximum == -kInfinity) {
    std::fill(out.begin(), out.end(), -kInfinity);
    return;
  }
  kernels.sampling->log_softmax(logits.data(), static_cast<int64_t>(logits.size()), maximum,
                                log_sum(*kernels.sampling, logits, maximum), out.data());
}

float logprob_of(const Kernels& kernels, std::span<const float> logits, int32_t token,
                 SamplerScratch& scratch) {
  const float maximum = find_maximum(*kernels.sampling, logits, scratch);
  if (maximum == -kInfinity) return -kInfinity;
  float logprob;
  kernels.sampling->log_softmax(&logits[static_cast<size_t>(token)], 1, maximum,
                                log_sum(*kernels.sampling, logits, maximum), &logprob);
  return logprob;
}

void top_logprobs(const Kernels& kernels, std::span<const float> logits,
                  std::span<TokenLogprob> out, SamplerScratch& scratch) {
  std::fill(out.begin(), out.end(), TokenLogprob{-1, -kInfinity});
  const float maximum = find_maximum(*kernels.sampling, logits, scratch);
  if (maximum == -kInfinity || out.empty()) return;
  const float sum = log_sum(*kernels.sampling, logits, maximum);
  const auto count = static_cast<int64_t>(std::min(out.size(), logits.size()));
  const size_t found = rank_highest(*kernels.sampling, logits, count, scratch);
  const auto ranked = scratch.ranked.begin();
  std::sort(ranked, ranked + static_cast<std::ptrdiff_t>(found), std::greater<>());
  for (size_t i = 0; i < found; ++i) {
    out[i].token = token_of(scratch.ranked[i]);
    kernels.sampling->log_softmax(&logits[static_cast<size_t>(out[i].token)], 1, maximum, sum,
                                  &out[i].logprob);
  }
}

uint64_t noise_bits(const SamplerParams& params, int64_t position, int32_t token) {
  return noise_bits(noise_stream(params, position), token);
}

double gumbel(uint64_t bits) { return -scalar::log(exponential(bits)); }

}  // namespace specqd
