// The acceptance of proposed tokens by the confidence that their drafter stated.
#pragma once

#include <array>
#include <cstddef>

namespace specqd {

// Stated confidence -> observed acceptance rate.
//
// Starts on a line from `floor`, at confidence 0, to certainty. An optimistic floor makes a policy
// try what it does not know yet; a pessimistic one would never learn.
class Calibration {
 public:
  explicit Calibration(double floor = 0.0) : floor_(floor) {}

  // The chance that a token stated with this confidence is accepted.
  double probability(double confidence) const;
  void observe(double confidence, bool is_accepted);

 private:
  static constexpr size_t kBins = 5;

  double floor_;
  std::array<double, kBins> weight_{}, accepted_{};  // observations; they do not contain the prior
};

// A level's acceptance, by its confidence in a token.
struct AcceptanceModel {
  Calibration own{0.5};    // of that token
  Calibration next{0.85};  // of the token after it, which is not drafted yet
};

}  // namespace specqd
