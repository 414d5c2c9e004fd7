#include "decode/feature_forward.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

namespace specqd {

FeatureForward::FeatureForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
                               Precision precision, std::shared_ptr<ModelForward> above,
                               std::vector<int64_t> boundaries, std::vector<int32_t> ids,
                               int64_t feature_width)
    : DecoderForward(std::move(decoder), std::move(cache), precision),
      above_(std::move(above)),
      boundaries_(std::move(boundaries)),
      ids_(std::move(ids)) {
  const auto ascends = std::is_sorted(ids_.begin(), ids_.end(), std::less_equal<>());
  const int64_t own = decoder_->spec().vocabulary, all = above_->vocabulary();
  const bool fits =
      ids_.empty() ? own == all : std::ssize(ids_) == own && ids_.front() >= 0 && ids_.back() < all;
  if (!ascends || !fits) throw std::invalid_argument("ids must ascend within the vocabulary");
  if (feature_width != std::ssize(boundaries_) * above_->decoder().spec().hidden)
    throw std::invalid_argument("the draft head's features are not as wide as the tapped ones");
  if (!ids_.empty())
    by_target_id_.assign(static_cast<size_t>(all), -std::numeric_limits<float>::infinity());
  above_->log_features(boundaries_);
}

const FeatureLog& FeatureForward::log_of(Context& source) const {
  const FeatureLog& log = source.features();
  const Decoder& above = above_->decoder();
  const size_t width = above.taps().boundaries().size() * static_cast<size_t>(above.spec().hidden);
  return width > 0 && log.width() == width ? log : no_log_;
}

void FeatureForward::append_feature(Context& source, size_t position,
                                    std::vector<uint16_t>& out) const {
  const std::span<const int64_t> tapped = above_->decoder().taps().boundaries();
  const std::span<const uint16_t> row = log_of(source).row(position);
  const size_t width = row.size() / tapped.size();
  for (const int64_t boundary : boundaries_) {
    const auto at = std::ranges::find(tapped, boundary) - tapped.begin();
    if (at == std::ssize(tapped))
      throw std::invalid_argument("the model above does not tap a boundary that the head reads");
    const auto tap = row.subspan(static_cast<size_t>(at) * width, width);
    out.insert(out.end(), tap.begin(), tap.end());
  }
}

std::span<const float> FeatureForward::logits(int64_t row) {
  const std::span<const float> own = own_logits(row);
  if (ids_.empty()) return own;
  for (size_t i = 0; i < own.size(); ++i) by_target_id_[static_cast<size_t>(ids_[i])] = own[i];
  return by_target_id_;
}

ScoredTokens FeatureForward::verify(int64_t row, std::span<const int32_t> proposal,
                                    const std::shared_ptr<Sequence>& sequence) {
  if (!proposal.empty()) throw std::invalid_argument("a draft head cannot verify proposals");
  return DecoderForward::verify(row, proposal, sequence);
}

}  // namespace specqd
