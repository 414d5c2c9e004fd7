// Copies of the residual stream at layer boundaries, which trained heads read.
#include <algorithm>
#include <stdexcept>

#include "model/decoder.h"

namespace specqd {

void Decoder::tap(std::vector<int64_t> boundaries) {
  const int64_t layers = std::ssize(weights_.layers);
  const bool ascends = std::is_sorted(boundaries.begin(), boundaries.end()) &&
                       std::adjacent_find(boundaries.begin(), boundaries.end()) == boundaries.end();
  if (!ascends || (!boundaries.empty() && (boundaries.front() < 0 || boundaries.back() > layers)))
    throw std::invalid_argument("boundaries must ascend from 0 to the number of layers at most");
  tapped_ = std::move(boundaries);
  taps_.resize(static_cast<size_t>(max_rows_ * std::ssize(tapped_) * spec_.hidden));
}

std::span<const uint16_t> Decoder::taps(int64_t row, int64_t rows) const {
  const int64_t width = std::ssize(tapped_) * spec_.hidden;
  return {taps_.data() + row * width, static_cast<size_t>(rows * width)};
}

void Decoder::copy_taps(Team& team, int64_t boundary) {
  const auto found = std::find(tapped_.begin(), tapped_.end(), boundary);
  if (found == tapped_.end()) return;
  const int64_t hidden = spec_.hidden, taps = std::ssize(tapped_), at = found - tapped_.begin();
  team.stage("taps");
  team.share(rows_, 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      kernels_.round_bf16_finite(residual_.data() + row * hidden, hidden,
                                 taps_.data() + (row * taps + at) * hidden);
  });
}

}  // namespace specqd
