#include "decode/features.h"

#include <algorithm>

namespace specqd {

void FeatureLog::write(size_t start, size_t count, std::span<const uint16_t> rows) {
  if (count == 0) return;
  const size_t width = rows.size() / count;
  if (start < begin_ || start > end() || width != width_) {
    begin_ = start;
    width_ = width;
    versions_.clear();
  }
  versions_.resize(start - begin_);
  rows_.resize(versions_.size() * width_);
  versions_.insert(versions_.end(), count, ++version_);
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  if (versions_.size() <= kMostPositions) return;
  const size_t dropped = versions_.size() - kMostPositions / 2;
  begin_ += dropped;
  versions_.erase(versions_.begin(), versions_.begin() + static_cast<std::ptrdiff_t>(dropped));
  rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(dropped * width_));
}

std::span<const uint16_t> FeatureLog::row(size_t position) const {
  return {rows_.data() + (position - begin_) * width_, width_};
}

size_t FeatureLog::first_after(int64_t version) const {
  const auto found = std::upper_bound(versions_.begin(), versions_.end(), version);
  return begin_ + static_cast<size_t>(found - versions_.begin());
}

}  // namespace specqd
