#include "model/candidate_selector.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/bf16.h"
#include "model/products.h"

namespace specqd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double widened(const uint8_t* codes, int64_t at) {
  uint16_t bits;
  std::memcpy(&bits, codes + at * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
  return bf16_to_float(bits);
}

}  // namespace

CandidateSelector::CandidateSelector(std::shared_ptr<const SelectorWeights> weights,
                                     const Norm& final_norm, int64_t vocabulary, int64_t max_rows)
    : weights_(std::move(weights)),
      final_norm_(final_norm),
      projected_(static_cast<size_t>(max_rows * weights_->projection->rows())),
      selected_(static_cast<size_t>(vocabulary)) {
  if (weights_->candidates < 1 || weights_->vocabulary != vocabulary)
    throw std::invalid_argument("a selector needs candidates, and codebooks of all tokens");
}

void CandidateSelector::run(Team& team, Batch& batch) {
  const PackedWeight& projection = *weights_->projection;
  const int64_t rows = batch.logit_row_count(), rank = projection.rows();
  if (rows == 0) return;
  multiply(team, batch, "selector", Precision::kExact, projection,
           prepare(team, batch, Precision::kExact, rows, projection,
                   normed_logit_rows(batch, final_norm_)),
           [&](int64_t first, int64_t count, const float* result, int64_t stride) {
             const int64_t kept = std::min(count, rank - first);
             for (int64_t row = 0; row < rows; ++row)
               std::memcpy(projected_.data() + row * rank + first, result + row * stride,
                           static_cast<size_t>(kept) * sizeof(float));
           });
}

// Lists the largest logits in descending order. Of equal ones, the lower id comes first.
void CandidateSelector::choose(std::span<const float> logits) {
  const auto most = static_cast<size_t>(weights_->candidates);
  const auto logit_of = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  candidates_.clear();
  for (int32_t token = 0; token < std::ssize(logits); ++token) {
    const float least = candidates_.size() < most ? -kInfinity : logit_of(candidates_.back());
    if (!(logit_of(token) > least)) continue;
    if (candidates_.size() == most) candidates_.pop_back();
    const auto after = std::ranges::find_if(
        candidates_, [&](int32_t other) { return logit_of(token) > logit_of(other); });
    candidates_.insert(after, token);
  }
}

std::span<const float> CandidateSelector::select(std::span<const float> logits, int64_t row,
                                                 int32_t previous, bool is_sampled) {
  if (previous < 0 || previous >= std::ssize(selected_))
    throw std::invalid_argument("token id outside the vocabulary");
  if (is_sampled)
    std::ranges::copy(logits, selected_.begin());
  else
    std::ranges::fill(selected_, -kInfinity);
  choose(logits);
  const int64_t rank = weights_->projection->rows();
  const float* const projected = projected_.data() + row * rank;
  for (const int32_t token : candidates_) {
    double score = logits[static_cast<size_t>(token)];
    for (int64_t i = 0; i < rank; ++i)
      score += widened(weights_->predecessors, previous * rank + i) *
               static_cast<double>(projected[i]) * widened(weights_->successors, token * rank + i);
    selected_[static_cast<size_t>(token)] = static_cast<float>(score);
  }
  return selected_;
}

}  // namespace specqd
