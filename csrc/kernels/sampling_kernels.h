// The loops over the vocabulary that sampling a token needs; part of the Kernels table.
#pragma once

#include <cstdint>

namespace specqd {

constexpr int64_t kMaximaBlock = 1024;  // logits per group of 16 maxima, one per lane
constexpr int64_t kNoiseGroup = 64;     // tokens that share one vector of Philox counters
constexpr float kLargestLogit = 3.4028235e38f;

// The key and words 1 to 3 of the counter of Philox4x32-10 (Salmon et al. 2011). philox_place()
// derives word 0 and the output word from the token's id.
struct NoiseStream {
  uint32_t key[2];
  uint32_t counter[3];
};

// A Weighing turns logits into weights. With z = (min(logit, kLargestLogit) - maximum) *
// inverse_temperature, the weight is e^z if logit >= least_logit and z >= least_z, else zero.
struct Weighing {
  float maximum;
  float inverse_temperature;
  float least_logit;  // above -infinity
  float least_z;      // kLeastZ or above
};
constexpr float kLeastZ = -87.3f;

// Weights are truncated to multiples of 2^-40 and summed as integers: exact in any order.
constexpr double kMassOfOne = 0x1p40;

struct SamplingKernels {
  // maxima[b][l] = the maximum of logits[1024 b + 16 i + l] over i < 64; NaN counts as -infinity.
  void (*maxima)(const float* logits, int64_t n, float* maxima);

  // Computes the weight of each token and returns the mass of all: their sum in units of 2^-40. The
  // weight of NaN is zero. Unless `weights` is null, it receives the weights, and zeros up to the
  // next multiple of 64.
  uint64_t (*weigh)(const float* logits, int64_t n, const Weighing& by, float* weights);

  // Returns the mass of the weights >= least; all weights are in [0, 1].
  uint64_t (*mass_from)(const float* weights, int64_t n, float least);

  void (*drop_below)(float* weights, int64_t n, float least);  // zeroes weights below `least`

  // Writes the indices of the values in [least, most], ascending, and returns how many there are.
  // `least` is above -infinity.
  int64_t (*collect)(const float* values, int64_t n, float least, float most, int32_t* indices);

  // Writes the ids, ascending, of all tokens in [begin, end) with v <= weight * bound, where v is
  // the token's uniform random number, and returns how many it wrote. A few other tokens may be
  // among them, but none of weight 0. `begin` is a multiple of 64; weights are padded as above.
  int64_t (*find_survivors)(const float* weights, int64_t begin, int64_t end,
                            const NoiseStream& noise, float bound, int32_t* ids);

  // out = logit if the token's bit is set, else -infinity; `out` may be `logits`.
  void (*mask)(const float* logits, int64_t n, const uint32_t* mask, float* out);

  // out = (min(logit, kLargestLogit) - maximum) - log_sum; -infinity for NaN.
  void (*log_softmax)(const float* logits, int64_t n, float maximum, float log_sum, float* out);
};

// Where a token's noise is in the Philox stream: word 0 of the counter, and the output word.
struct PhiloxPlace {
  uint32_t counter;
  int word;
};
constexpr PhiloxPlace philox_place(int32_t token) {
  const uint32_t id = static_cast<uint32_t>(token);
  return {id / 64 * 16 + id % 16, static_cast<int>(id / 16 % 4)};
}

constexpr uint32_t kPhiloxMultiplier[2] = {0xd2511f53u, 0xcd9e8d57u};
constexpr uint32_t kPhiloxKeyStep[2] = {0x9e3779b9u, 0xbb67ae85u};
constexpr int kPhiloxRounds = 10;

}  // namespace specqd
