// The acceptance of proposals by the confidence that their drafter stated.
#pragma once

#include <array>
#include <cstddef>

#include "decode/sequence.h"

namespace specqd {

// Stated confidence -> observed acceptance.
//
// Starts on a line from `floor`, at confidence 0, to certainty. An optimistic floor makes a policy
// try what it does not know yet; a pessimistic one would never learn. `memory` is the number of
// observations of a bin after which older ones fade.
class Calibration {
 public:
  explicit Calibration(double floor = 0.0, double memory = 300.0);

  // The chance that a token stated with this confidence is accepted.
  double probability(double confidence) const;
  // The same, but what was not seen yet is expected to be no better than what was. A drafter that
  // would take the place of a better one must not be tried anew at each confidence.
  double cautious_probability(double confidence) const;
  double mean() const;  // acceptance over all confidences
  void observe(double confidence, bool is_accepted);

 private:
  static constexpr size_t kBins = 14;

  double at(size_t bin, double prior) const;

  double memory_;
  std::array<double, kBins> prior_, weight_{}, accepted_{};  // observations do not hold the prior
};

// A level's acceptance, by its confidence in a token.
struct AcceptanceModel {
  Calibration own{0.5, 200.0};    // of that token
  Calibration next{0.85, 100.0};  // of the token after it, which is not drafted yet
};

// One model for greedy sequences and one for sampled ones: at a temperature above 0 the common
// noise makes a confidence say less.
template <class Model>
struct ByTemperature {
  Model greedy, sampled;

  Model& of(const Sequence& sequence) { return sequence.is_sampled ? sampled : greedy; }
};

}  // namespace specqd
