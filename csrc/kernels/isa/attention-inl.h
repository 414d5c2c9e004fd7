// The softmax of a chunk of scores, and the merging of chunks. Sums have the fixed order of sixteen
// lanes.
#pragma once

#include "kernels/isa/lanes-inl.h"
#include "kernels/isa/ops-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

// Replaces sixteen scores by scale * score, or by -infinity where they are not visible.
inline F16 scale_scores(float* scores, int64_t i, int64_t begin, int64_t end, float scale) {
  F16 scaled = load(scores + i) * splat(scale);
  if (i < begin || i + kLanes > end) {
    const I16 at = lane_numbers<I16>() + static_cast<int32_t>(i);
    const I16 visible = (at >= static_cast<int32_t>(begin)) & (at < static_cast<int32_t>(end));
    scaled = select(visible, scaled, splat(kMinusInfinity));
  }
  store(scores + i, scaled);
  return scaled;
}

// Prefetches nothing between exponentials.
struct NoLines {
  explicit NoLines(PagesAhead*) {}
  void after_vector(int64_t) {}
};

template <class Lines>
Kernels::SoftmaxPart softmax_part_by(float* scores, int64_t n, int64_t begin, int64_t end,
                                     float scale, float* page_sums, PagesAhead* ahead) {
  F16 maximum = splat(kMinusInfinity);
  for (int64_t i = 0; i < n; i += kLanes)
    maximum = max(scale_scores(scores, i, begin, end, scale), maximum);
  const float top = max_lanes(maximum);
  if (top == kMinusInfinity) {
    std::memset(scores, 0, static_cast<size_t>(n) * sizeof(float));
    for (int64_t first = 0; page_sums != nullptr && first < n; first += kPagePositions)
      page_sums[first / kPagePositions] = 0.0f;
    return {kMinusInfinity, 0.0f};
  }
  F16 sum{};
  Lines lines(ahead);
  for (int64_t first = 0; first < n; first += kPagePositions) {
    const int64_t last = first + kPagePositions < n ? first + kPagePositions : n;
    F16 page{};
    for (int64_t i = first; i < last; i += kLanes) {
      const F16 p = exp_not_above_zero(load(scores + i) - splat(top));
      store(scores + i, p);
      sum = sum + p;
      page = page + p;
      lines.after_vector(i / kLanes);
    }
    if (page_sums != nullptr) page_sums[first / kPagePositions] = sum_lanes(page);
  }
  return {top, sum_lanes(sum)};
}

void merge_part(float* values, Kernels::SoftmaxPart* running, const float* part_values,
                Kernels::SoftmaxPart part, int64_t n) {
  if (part.maximum == kMinusInfinity) return;
  if (running->maximum == kMinusInfinity) {
    std::memcpy(values, part_values, static_cast<size_t>(n) * sizeof(float));
    *running = part;
    return;
  }
  const float top = running->maximum > part.maximum ? running->maximum : part.maximum;
  using F4 = Lanes<float, 4>;
  const F4 factors = exp_not_above_zero(F4{running->maximum - top, part.maximum - top});
  const float keep = factors[0], take = factors[1];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(values + i, load(values + i) * splat(keep) + load(part_values + i) * splat(take));
  for (; i < n; ++i) values[i] = values[i] * keep + part_values[i] * take;
  running->sum = running->sum * keep + part.sum * take;
  running->maximum = top;
}

}  // namespace
}  // namespace specqd
