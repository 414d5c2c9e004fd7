#include "weights/error_feedback.h"

#include <algorithm>

namespace specqd {
namespace {

constexpr double kDamping = 0.01;

// Factors H of one group of `count` columns. `products` holds its upper triangle. `factors` is zero
// before, and receives F.
void factor(const float* products, int64_t count, float* factors) {
  std::vector<double> lower(static_cast<size_t>(count * count));
  const auto row = [&](int64_t i) { return lower.data() + i * count; };
  double trace = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = i; j < count; ++j) row(j)[i] = products[i * kFeedbackInputs + j];
    trace += row(i)[i];
  }
  const double damping = kDamping * trace / static_cast<double>(count);
  if (!(damping > 0)) return;
  for (int64_t i = 0; i < count; ++i) row(i)[i] += damping;
  for (int64_t j = count - 1; j > 0; --j) {
    const double* const last = row(j);
    const double diagonal = std::max(last[j], damping);
    for (int64_t i = 0; i < j; ++i) {
      const double share = last[i] / diagonal;
      factors[i * kFeedbackInputs + j] = static_cast<float>(share);
      double* const left = row(i);
      for (int64_t k = 0; k <= i; ++k) left[k] -= share * last[k];
    }
  }
}

}  // namespace

std::vector<float> feedback_factors(Pool& pool, std::span<const float> products, int64_t columns) {
  std::vector<float> factors(
      static_cast<size_t>((columns + kBlock - 1) / kBlock * kBlock * kFeedbackInputs), 0.0f);
  const int64_t groups = (columns + kFeedbackInputs - 1) / kFeedbackInputs;
  pool.run([&](Team& team) {
    team.share(groups, 1, [&](int64_t group, int64_t) {
      const int64_t first = group * kFeedbackInputs, at = first * kFeedbackInputs;
      factor(products.data() + at, std::min(kFeedbackInputs, columns - first), factors.data() + at);
    });
  });
  return factors;
}

ErrorFeedback::ErrorFeedback(std::span<const float> factors, int64_t group)
    : factors_(factors), group_(group) {
  if (!factors.empty()) pending_.resize(static_cast<size_t>(group * kPanel));
}

const TileFeedback* ErrorFeedback::tile(int64_t tile) {
  if (factors_.empty()) return nullptr;
  const int64_t input = tile * kBlock, at = input % group_;
  if (at == 0) std::fill(pending_.begin(), pending_.end(), 0.0f);
  const int64_t columns = std::ssize(factors_) / group_;
  feedback_ = {factors_.data() + input * group_ + at, group_,
               std::min(group_ - at, columns - input), pending_.data() + at * kPanel};
  return &feedback_;
}

}  // namespace specqd
