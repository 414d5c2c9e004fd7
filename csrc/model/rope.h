// Rotary position tables: inverse frequencies, and the cosines and sines of position times inverse
// frequency. The bits are the same on every machine, because every cached key depends on them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

enum class RopeKind { kDefault, kLinear, kLlama3, kYarn, kLong, kProportional };

// Fields that a kind does not use are ignored.
struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  int dims = 0;  // number of dimensions of a head that rotate, from the first
  double theta = 10000.0;
  double factor = 1.0;
  double original_max_positions = 0.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // <= 0: derived from factor, mscale and mscale_all_dim
  double mscale = 0.0;            // 0: absent
  double mscale_all_dim = 0.0;    // 0: absent
  bool truncate = true;
  std::vector<float> factors;  // kLong: one per pair, [dims / 2]
  double query_growth = 0.0;   // growth of rotated queries by position; 0: none
  int turning_pairs = 0;       // kProportional: pairs that rotate; later pairs have frequency 0
};

// inv_freq[i] = theta^(-2i / dims), scaled according to the kind, with every intermediate rounded
// to fp32 where transformers rounds it. inv_freq.size() == dims / 2.
// Returns the factor that scales cos and sin: 1 for all kinds but YaRN and LongRoPE. Throws
// std::invalid_argument if LongRoPE does not have dims / 2 factors.
float rope_inverse_frequencies(const RopeSpec& spec, std::span<float> inv_freq);

// cos[p][i], sin[p][i] for positions first + p, p < count; each array is [count][inv_freq.size()].
// The angle is the fp32 product position * inv_freq[i], as in transformers; its cosine and sine are
// computed and scaled in double and rounded once. Positions are below 2^24: exact in fp32.
void rope_tables(std::span<const float> inv_freq, float attention_factor, int64_t first,
                 int64_t count, float* cos, float* sin);

// Returns the factor on rotated queries at `position`, computed in double and rounded once:
// 1 + query_growth ln(1 + floor(position / original_max_positions)).
float rope_query_scale(const RopeSpec& spec, int64_t position);

}  // namespace specqd
