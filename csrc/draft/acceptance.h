// The acceptance of proposed tokens by the confidence that their drafter stated.
#pragma once

#include <cstddef>
#include <vector>

namespace specqd {

// Stated confidence -> observed acceptance rate, in bins. Their edges are closer towards 1, where
// most confidences are and differences count.
//
// Starts on a line from `floor`, at confidence 0, to certainty. An optimistic floor makes a policy
// try what it does not know yet; a pessimistic one would never learn. If bins share what they
// learn, one without observations follows the others, but not above the line: where half as many
// tokens were accepted as on the line, so are its own.
class Calibration {
 public:
  explicit Calibration(double floor = 0.0, std::vector<double> edges = {0.3, 0.7, 0.9, 0.97},
                       bool is_shared = true);

  // The chance that a token stated with this confidence is accepted.
  double probability(double confidence) const;
  void observe(double confidence, bool is_accepted);

 private:
  size_t bin_of(double confidence) const;

  double line(double confidence) const { return floor_ + (1.0 - floor_) * confidence; }

  double floor_;
  bool is_shared_;
  std::vector<double> edges_;
  std::vector<double> weight_, accepted_;           // observations; they do not contain the prior
  double all_accepted_ = 0.0, all_expected_ = 0.0;  // of all bins, the latter on the line
};

// A level's acceptance, by its confidence in a token.
struct AcceptanceModel {
  Calibration own{0.5};    // of that token
  Calibration next{0.85};  // of the token after it, which is not drafted yet
};

}  // namespace specqd
