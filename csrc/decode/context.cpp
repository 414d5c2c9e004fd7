#include "decode/context.h"

#include <algorithm>

namespace specqd {

void Context::begin(size_t length) {
  provisional_from_ = length;
  if (!follows_exact()) return;
  exact_->record(std::min(exact_->length(), length - 1), {});
  follow_exact();
  provisional_from_ = offset_;
}

// Begins where the exact context ends now, unless it does so already.
void Context::follow_exact() {
  if (offset_ == exact_->length()) return;
  offset_ = exact_->length();
  tokens_.clear();
  settled_ = 0;
}

size_t Context::match(std::span<const int32_t> tokens, size_t accepted) {
  if (follows_exact() && exact_->length() > offset_) follow_exact();
  const size_t beyond = tokens.size() > offset_ ? tokens.size() - offset_ : 0;
  const size_t limit = std::min(tokens_.size(), beyond);
  size_t at = std::min(settled_, limit);
  while (at < limit && tokens_[at] == tokens[offset_ + at]) ++at;
  tokens_.resize(at);
  settled_ = std::min(at, accepted > offset_ ? accepted - offset_ : 0);
  accepted_ = accepted;
  return offset_ + at;
}

// The last accepted token is not settled: it may be forwarded again for its logits.
size_t Context::settled() const {
  if (exact_ != nullptr && exact_->length() > 0)
    return std::min(exact_->settled(), exact_->length());
  return accepted_ > 0 ? accepted_ - 1 : 0;
}

void Context::record(size_t start, std::span<const int32_t> tokens) {
  const size_t kept = start > offset_ ? start - offset_ : 0;
  if (kept < tokens_.size()) tokens_.resize(kept);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  settled_ = std::min(settled_, kept);
}

}  // namespace specqd
