// Counts of the accepted tokens of blocks, by their place in the block. This file knows no models
// and no sequences.
//
// Places are counted in four groups: 1; 2 and 3; 4 to 7; 8 and later. A token counts only if those
// before it were accepted.
#pragma once

#include <array>
#include <cstddef>

#include "draft/acceptance.h"

namespace specqd {

inline constexpr size_t kPlaceGroups = 4;
size_t place_group(size_t place);

// The shares of its position's noise with which a token can be sampled: all of it, as the verifier
// has it; half; none, which gives the likeliest token.
inline constexpr std::array<float, 3> kNoiseShares{1.0f, 0.5f, 0.0f};

// Acceptance of a block's tokens.
class PlaceAcceptance {
 public:
  PlaceAcceptance();

  // The chance before the block is made; the verifier stated `confidence` in the token before it.
  double expected(size_t place, double confidence) const;
  // The chance of a token that was sampled with the probability `stated`, with a share of the
  // noise.
  double probability(size_t place, size_t share, double stated) const;
  void observe(size_t place, double confidence, size_t share, double stated, bool is_accepted);

 private:
  using Shares = std::array<Calibration, kNoiseShares.size()>;

  Calibration first_{0.85};                      // of the first token, by the confidence before it
  std::array<Calibration, kPlaceGroups> later_;  // of later ones; group 0 is not used
  std::array<Shares, kPlaceGroups> own_;         // by the token's own probability
};

// Finds the share of the noise that gives the verifier's tokens most often, by place. A drafter
// that predicts the verifier's distribution needs all of the noise. If its distribution is much
// flatter, as that of a late place may be, less is better.
class NoiseChoice {
 public:
  using Outcome = std::array<bool, kNoiseShares.size()>;  // whether each share gave the right token

  size_t best(size_t place) const;
  void observe(size_t place, const Outcome& is_right);

 private:
  std::array<std::array<double, kNoiseShares.size()>, kPlaceGroups> right_{};  // older ones fade
};

}  // namespace specqd
