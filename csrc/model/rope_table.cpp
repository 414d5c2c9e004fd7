#include "model/rope_table.h"

#include <algorithm>

namespace specqd {

RopeTable::RopeTable(const RopeSpec& spec)
    : spec_(spec), inverse_frequencies_(static_cast<size_t>(spec.dims / 2)) {
  factor_ = rope_inverse_frequencies(spec_, inverse_frequencies_);
}

void RopeTable::reach(int64_t end) {
  if (end <= positions_) return;
  const int64_t most = std::max(end, positions_ * 2 + 64);
  const int64_t half = std::ssize(inverse_frequencies_);
  cosines_.resize(static_cast<size_t>(most * half));
  sines_.resize(static_cast<size_t>(most * half));
  rope_tables(inverse_frequencies_, factor_, positions_, most - positions_,
              cosines_.data() + positions_ * half, sines_.data() + positions_ * half);
  positions_ = most;
}

}  // namespace specqd
