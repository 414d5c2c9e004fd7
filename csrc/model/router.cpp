#include "model/router.h"

#include <algorithm>
#include <limits>

namespace specqd {
namespace {

int64_t pad(int64_t experts) { return (experts + kBlock - 1) / kBlock * kBlock; }

}  // namespace

int64_t Router::padded() const { return pad(mixture_.router->rows()); }

// Computes the values by which experts are chosen: their sigmoids plus the correction bias, or
// -infinity outside of the best groups. Of groups with equal sums, the lower index is better.
void Router::correct(const float* sigmoids, float* out) const {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < experts_; ++i)
    out[i] = sigmoids[i] + mixture_.correction_bias[static_cast<size_t>(i)];
  const int64_t size = experts_ / mixture_.groups;
  const auto sum_of_two = [&](int64_t group) {
    float best = kNone, second = kNone;
    for (int64_t i = group * size; i < (group + 1) * size; ++i) {
      second = std::max(second, std::min(best, out[i]));
      best = std::max(best, out[i]);
    }
    return best + second;
  };
  for (int64_t rest = mixture_.groups - mixture_.chosen_groups; rest > 0; --rest) {
    int64_t worst = -1;
    float least = 0.0f;
    for (int64_t group = 0; group < mixture_.groups; ++group) {
      if (out[group * size] == kNone) continue;
      if (const float sum = sum_of_two(group); worst < 0 || sum <= least)
        worst = group, least = sum;
    }
    std::fill_n(out + worst * size, size, kNone);
  }
}

void Router::choose(float* scores, float* choice_scores, std::span<Choice> chosen,
                    float& shared_gate) const {
  const Kernels& kernels = traits_.kernels;
  shared_gate = 1.0f;
  if (mixture_.router->rows() > experts_) kernels.sigmoid_gate(scores + experts_, 1, &shared_gate);
  const float* by = scores;
  if (mixture_.takes_sigmoids()) {
    std::fill_n(choice_scores, experts_, 1.0f);
    kernels.sigmoid_gate(scores, experts_, choice_scores);
    std::copy_n(choice_scores, experts_, scores);
    correct(scores, choice_scores);
    by = choice_scores;
  }
  for (auto place = chosen.begin(); place != chosen.end(); ++place) {
    int64_t best = -1;
    for (int64_t expert = 0; expert < experts_; ++expert) {
      if (best >= 0 && !(by[expert] > by[best])) continue;
      if (std::any_of(chosen.begin(), place, [&](const Choice& c) { return c.expert == expert; }))
        continue;
      best = expert;
    }
    *place = {static_cast<int32_t>(best), 0, scores[best]};
  }
  weigh(chosen, scores);
  if (mixture_.expert_scales.empty()) return;
  for (Choice& each : chosen)
    each.weight *= mixture_.expert_scales[static_cast<size_t>(each.expert)];
}

// Turns the scores of a row's chosen experts into routing weights. `scores` holds the scores of all
// experts and is overwritten.
void Router::weigh(std::span<Choice> chosen, float* scores) const {
  const bool is_of_chosen = traits_.spec.normalizes_routing_weights;
  if (mixture_.takes_sigmoids()) {
    float sum = mixture_.weight_sum_epsilon;
    for (const Choice& each : chosen) sum += each.weight;
    if (is_of_chosen)
      for (Choice& each : chosen) each.weight /= sum;
    return;
  }
  const int64_t among = is_of_chosen ? std::ssize(chosen) : experts_;
  for (int64_t i = 0; is_of_chosen && i < among; ++i)
    scores[i] = chosen[static_cast<size_t>(i)].weight;
  std::fill(scores + among, scores + pad(among), 0.0f);
  const float sum =
      traits_.kernels.softmax_part(scores, pad(among), 0, among, 1.0f, nullptr, nullptr).sum;
  for (int64_t i = 0; i < std::ssize(chosen); ++i) {
    Choice& each = chosen[static_cast<size_t>(i)];
    each.weight = scores[is_of_chosen ? i : each.expert] / sum;
  }
}

}  // namespace specqd
