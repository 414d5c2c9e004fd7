#include "model/input_products.h"

#include <algorithm>
#include <utility>

#include "weights/error_feedback.h"

namespace specqd {
namespace {

constexpr float kMost = 0x1p12f;

int64_t padded_columns(const PackedWeight& weight) { return weight.matrix().tiles * kBlock; }

}  // namespace

InputProducts::InputProducts(const std::vector<const PackedWeight*>& weights, int64_t most_rows)
    : weights_(weights) {
  int64_t widest = 0;
  for (const PackedWeight* weight : weights) {
    if (weight == nullptr) {
      sums_.emplace_back();
      continue;
    }
    index_.emplace(weight, sums_.size());
    sums_.emplace_back(static_cast<size_t>(padded_columns(*weight) * kFeedbackInputs), 0.0f);
    widest = std::max(widest, padded_columns(*weight));
  }
  rows_.resize(static_cast<size_t>(most_rows * widest));
}

void InputProducts::hold(const PackedWeight& weight, int64_t row, const float* inputs) {
  if (!index_.contains(&weight)) return;
  float* const kept = rows_.data() + row * padded_columns(weight);
  for (int64_t k = 0; k < weight.columns(); ++k)
    kept[k] = inputs[k] >= -kMost ? std::min(inputs[k], kMost) : -kMost;  // also if NaN
  std::fill(kept + weight.columns(), kept + padded_columns(weight), 0.0f);
}

std::vector<std::vector<float>> InputProducts::take() {
  for (size_t i = 0; i < sums_.size(); ++i)
    if (weights_[i] != nullptr)
      sums_[i].resize(static_cast<size_t>(weights_[i]->columns() * kFeedbackInputs));
  return std::move(sums_);
}

void InputProducts::add(Team& team, const Kernels& kernels, const PackedWeight& weight,
                        int64_t rows) {
  const auto found = index_.find(&weight);
  if (found == index_.end()) return;
  float* const sums = sums_[found->second].data();
  const int64_t columns = padded_columns(weight);
  team.share((columns + kFeedbackInputs - 1) / kFeedbackInputs, 1, [&](int64_t group, int64_t) {
    const int64_t first = group * kFeedbackInputs;
    kernels.add_products(rows_.data() + first, rows, columns,
                         std::min(kFeedbackInputs, columns - first), sums + first * kFeedbackInputs,
                         kFeedbackInputs);
  });
}

}  // namespace specqd
