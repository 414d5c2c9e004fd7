#include "model/taps.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace specqd {

void Taps::set(std::vector<int64_t> boundaries) {
  const bool ascends = std::is_sorted(boundaries.begin(), boundaries.end()) &&
                       std::adjacent_find(boundaries.begin(), boundaries.end()) == boundaries.end();
  if (!ascends || (!boundaries.empty() && (boundaries.front() < 0 || boundaries.back() > layers_)))
    throw std::invalid_argument("boundaries must ascend from 0 to the number of layers at most");
  boundaries_ = std::move(boundaries);
  width_ = std::ssize(boundaries_) * hidden_;
  copies_.resize(static_cast<size_t>(max_rows_ * width_));
}

std::span<const uint16_t> Taps::rows(int64_t row, int64_t rows) const {
  return {copies_.data() + row * width_, static_cast<size_t>(rows * width_)};
}

void Taps::copy(Team& team, const Batch& batch, int64_t boundary) {
  const auto found = std::find(boundaries_.begin(), boundaries_.end(), boundary);
  if (found == boundaries_.end()) return;
  const int64_t at = found - boundaries_.begin();
  team.stage("taps");
  team.share(batch.rows, 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      batch.traits.kernels.round_bf16_finite(batch.residual.data() + row * hidden_, hidden_,
                                             copies_.data() + row * width_ + at * hidden_);
  });
}

}  // namespace specqd
