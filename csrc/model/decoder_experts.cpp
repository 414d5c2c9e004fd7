// Mixture of experts: a router chooses a few feed forwards for each row; a forward reads only
// those.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/bf16.h"
#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

int64_t pad(int64_t experts) { return (experts + kBlock - 1) / kBlock * kBlock; }

}  // namespace

// Scores every expert for each row; returns the prepared rows for the experts. Drafts read the
// router exactly too, because it is small and decides much.
PreparedRows Decoder::route(Team& team, const LayerWeights& layer) {
  const Mixture& mixture = *layer.mixture;
  const PackedWeight &router = *mixture.router, &gate_up = *layer.feed_forwards.front().gate_up;
  const int64_t outputs = router.rows(), stride = pad(outputs);
  const bool is_apart = mixture.router_norm.exists();
  const auto inputs =
      normed(mixture.experts_norm.exists() ? mixture.experts_norm : layer.feed_forward_norm);
  const auto router_inputs = is_apart ? normed(mixture.router_norm) : inputs;
  const PreparedRows x =
      prepare(team, Precision::kExact, rows_, is_apart ? router : gate_up, router_inputs);
  multiply(team, "router", Precision::kExact, router, x,
           [&](int64_t first, int64_t count, float* result, int64_t result_stride) {
             const int64_t kept = std::min(count, outputs - first);
             for (int64_t row = 0; row < rows_; ++row) {
               float* const from = result + row * result_stride;
               if (!mixture.router_bias.empty())
                 kernels_.add_bf16(from, mixture.router_bias.data() + first, kept);
               if (mixture.score_scale != 1.0f) kernels_.scale(from, mixture.score_scale, kept);
               std::memcpy(router_scores_.data() + row * stride + first, from,
                           static_cast<size_t>(kept) * sizeof(float));
             }
           });
  if (precision_ == Precision::kExact && !is_apart) return x;
  return prepare(team, precision_, rows_, gate_up, inputs);
}

// The values by which experts are chosen: their sigmoids and biases, -infinity outside of the best
// groups, the lower index first among equals.
void Decoder::score_choices(const Mixture& mixture, int64_t experts, const float* sigmoids,
                            float* out) const {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < experts; ++i)
    out[i] = sigmoids[i] + mixture.choice_bias[static_cast<size_t>(i)];
  const int64_t size = experts / mixture.groups;
  const auto sum_of_two = [&](int64_t group) {
    float best = kNone, second = kNone;
    for (int64_t i = group * size; i < (group + 1) * size; ++i) {
      second = std::max(second, std::min(best, out[i]));
      best = std::max(best, out[i]);
    }
    return best + second;
  };
  for (int64_t rest = mixture.groups - mixture.chosen_groups; rest > 0; --rest) {
    int64_t worst = -1;
    float least = 0.0f;
    for (int64_t group = 0; group < mixture.groups; ++group) {
      if (out[group * size] == kNone) continue;
      if (const float sum = sum_of_two(group); worst < 0 || sum <= least)
        worst = group, least = sum;
    }
    std::fill_n(out + worst * size, size, kNone);
  }
}

// Chooses the best experts of a row, the lower index first among equals, and their shares.
void Decoder::choose_experts(const LayerWeights& layer, int64_t row) {
  const Mixture& mixture = *layer.mixture;
  const int64_t experts = std::ssize(layer.feed_forwards), count = spec_.experts_per_token;
  float* const scores = router_scores_.data() + row * pad(mixture.router->rows());
  Choice* const chosen = choices_.data() + row * count;
  float& gate = shared_gates_[static_cast<size_t>(row)] = 1.0f;
  if (mixture.router->rows() > experts) kernels_.sigmoid_gate(scores + experts, 1, &gate);
  const float* by = scores;
  if (mixture.takes_sigmoids()) {
    float* const choice = choice_scores_.data() + row * pad(mixture.router->rows());
    std::fill_n(choice, experts, 1.0f);
    kernels_.sigmoid_gate(scores, experts, choice);
    std::copy_n(choice, experts, scores);
    score_choices(mixture, experts, scores, choice);
    by = choice;
  }
  for (int64_t place = 0; place < count; ++place) {
    int64_t best = -1;
    for (int64_t expert = 0; expert < experts; ++expert) {
      if (best >= 0 && !(by[expert] > by[best])) continue;
      if (std::any_of(chosen, chosen + place, [&](const Choice& c) { return c.expert == expert; }))
        continue;
      best = expert;
    }
    chosen[place] = {static_cast<int32_t>(best), 0, scores[best]};
  }
  share_among(mixture, experts, {chosen, static_cast<size_t>(count)}, scores);
  if (mixture.share_scales.empty()) return;
  for (Choice& each : std::span(chosen, static_cast<size_t>(count)))
    each.share *= mixture.share_scales[static_cast<size_t>(each.expert)];
}

// Turns the scores of a row's chosen experts into shares; overwrites `scores`, those of all.
void Decoder::share_among(const Mixture& mixture, int64_t experts, std::span<Choice> chosen,
                          float* scores) const {
  if (mixture.takes_sigmoids()) {
    float sum = mixture.least_sum;
    for (const Choice& each : chosen) sum += each.share;
    if (spec_.shares_of_chosen)
      for (Choice& each : chosen) each.share /= sum;
    return;
  }
  const int64_t count = std::ssize(chosen);
  if (spec_.shares_of_chosen)
    for (int64_t place = 0; place < count; ++place)
      scores[place] = chosen[static_cast<size_t>(place)].share;
  const int64_t among = spec_.shares_of_chosen ? count : experts;
  const float sum = kernels_.softmax_part(scores, pad(among), 0, among, 1.0f).sum;
  for (int64_t place = 0; place < count; ++place) {
    Choice& each = chosen[static_cast<size_t>(place)];
    each.share = scores[spec_.shares_of_chosen ? place : each.expert] / sum;
  }
}

void Decoder::sort_choices(int64_t experts) {
  const int64_t count = spec_.experts_per_token;
  std::fill_n(expert_starts_.begin(), experts + 1, 0);
  chosen_.clear();
  for (int64_t i = 0; i < rows_ * count; ++i)
    ++expert_starts_[static_cast<size_t>(choices_[static_cast<size_t>(i)].expert + 1)];
  for (int64_t expert = 0; expert < experts; ++expert) {
    int32_t& end = expert_starts_[static_cast<size_t>(expert + 1)];
    if (end > 0) chosen_.push_back(static_cast<int32_t>(expert));
    end += expert_starts_[static_cast<size_t>(expert)];
  }
  std::vector<int32_t> next(expert_starts_.begin(), expert_starts_.begin() + experts);
  for (int64_t i = 0; i < rows_ * count; ++i) {
    Choice& choice = choices_[static_cast<size_t>(i)];
    choice.slot = next[static_cast<size_t>(choice.expert)]++;
    slot_row_[static_cast<size_t>(choice.slot)] = static_cast<int32_t>(i / count);
  }
}

// Copies prepared rows by slot, so that an expert's rows are consecutive.
PreparedRows Decoder::gather(Team& team, const PreparedRows& x) {
  team.stage("gather");
  team.share(rows_ * spec_.experts_per_token, 1, [&](int64_t slot, int64_t) {
    const auto row = static_cast<size_t>(slot_row_[static_cast<size_t>(slot)]);
    std::memcpy(gathered_.data() + static_cast<size_t>(slot) * x.stride, x.data + row * x.stride,
                x.stride);
  });
  return {gathered_.data(), x.stride, rows_ * spec_.experts_per_token};
}

// Multiplies each chosen expert's rows by its weight and calls take(expert, first_output, outputs,
// result, stride). `x` holds rows by slot if `is_gathered`. Ends with a barrier.
template <class Take>
void Decoder::multiply_experts(Team& team, const char* stage, const LayerWeights& layer,
                               std::shared_ptr<PackedWeight> FeedForward::* weight,
                               const PreparedRows& x, bool is_gathered, const Take& take) {
  const auto product =
      precision_ == Precision::kFp4 ? kernels_.draft_product : kernels_.exact_product;
  float* const out = scratch_[static_cast<size_t>(team.thread())].products();
  const PackedWeight& any = *(layer.feed_forwards.front().*weight);
  const int64_t panels = any.matrix().panels;
  const size_t panel_bytes = bytes_of(any, precision_) / static_cast<size_t>(panels);
  const int64_t chosen = std::ssize(chosen_);
  const int64_t grain = panels_of_claim(panels * chosen, panel_bytes, rows_, team.threads());
  // The claims of each node: chosen experts, and of each the node's panels.
  const auto claims_of = [&](int node) {
    return (team.bound(node + 1, panels) - team.bound(node, panels) + grain - 1) / grain;
  };
  const auto bound = [&](int node) {
    int64_t claims = 0;
    for (int before = 0; before < node; ++before) claims += chosen * claims_of(before);
    return claims;
  };
  team.stage(stage);
  team.share_by_node(bound(team.nodes()), 1, bound, [&](int64_t claim, int64_t) {
    int node = 0;
    while (claim >= bound(node + 1)) ++node;
    claim -= bound(node);
    const int64_t claims = claims_of(node), end = team.bound(node + 1, panels);
    const auto expert = static_cast<size_t>(chosen_[static_cast<size_t>(claim / claims)]);
    const PackedWeight& each = *(layer.feed_forwards[expert].*weight);
    const int64_t first = team.bound(node, panels) + claim % claims * grain;
    const int64_t last = std::min(first + grain, end);
    const int64_t start = expert_starts_[expert], rows = expert_starts_[expert + 1] - start;
    const size_t skipped = is_gathered ? static_cast<size_t>(start) * x.stride : 0;
    const int64_t stride = (last - first) * kPanel;
    product(each.matrix(team.node()), first, last, {x.data + skipped, x.stride, rows}, out, stride);
    if (team.nodes() > 1)
      team.tally(panels, first, last, bytes_of(each, precision_) / static_cast<size_t>(panels));
    take(expert, first * kPanel, stride, out, stride);
  });
}

void Decoder::mix_experts(Team& team, const LayerWeights& layer) {
  const int64_t hidden = spec_.hidden, count = spec_.experts_per_token;
  const auto start_of = [&](size_t expert) { return expert_starts_[expert]; };
  const auto rows_of = [&](size_t expert) { return start_of(expert + 1) - start_of(expert); };

  const Mixture& mixture = *layer.mixture;
  if (mixture.has_shared())
    run_feed_forward(team, layer.feed_forward_norm, mixture.shared, Destination::kAside);
  const PreparedRows x = route(team, layer);
  team.stage("choice of experts");
  team.share(rows_, 1, [&](int64_t row, int64_t) { choose_experts(layer, row); });
  team.stage("choice of experts");
  team.share(1, 1, [&](int64_t, int64_t) {
    sort_choices(std::ssize(layer.feed_forwards));
    for (const int32_t expert : chosen_)
      moved_bytes_ += bytes_of(layer.feed_forwards[static_cast<size_t>(expert)], precision_);
  });
  const bool is_gathered = rows_ > 1;
  multiply_experts(
      team, "gate and up", layer, &FeedForward::gate_up, is_gathered ? gather(team, x) : x,
      is_gathered,
      [&](size_t expert, int64_t first, int64_t outputs, float* result, int64_t stride) {
        const FeedForward& weights = layer.feed_forwards[expert];
        activate(weights, first, outputs, result, stride, rows_of(expert),
                 hidden_.data() + start_of(expert) * weights.down->columns());
      });

  const PackedWeight& down = *layer.feed_forwards.front().down;
  multiply_experts(
      team, "down", layer, &FeedForward::down,
      prepare(team, precision_, rows_ * count, down, rows_at(hidden_.data(), down.columns())), true,
      [&](size_t expert, int64_t first, int64_t outputs, float* result, int64_t stride) {
        const Vector& bias = layer.feed_forwards[expert].down_bias;
        const int64_t kept = std::min(outputs, hidden - first);
        for (int64_t row = 0; row < rows_of(expert); ++row) {
          float* const from = result + row * stride;
          if (!bias.empty()) kernels_.add_bf16(from, bias.data() + first, kept);
          std::memcpy(slot_outputs(mixture) + (start_of(expert) + row) * hidden + first, from,
                      static_cast<size_t>(kept) * sizeof(float));
        }
      });
  team.stage("sum of experts");
  team.share(rows_, 1, [&](int64_t row, int64_t) { sum_experts(layer, row); });
}

// Adds a row's experts, best first, and then the shared feed forward, to the residual stream.
void Decoder::sum_experts(const LayerWeights& layer, int64_t row) {
  const Mixture& mixture = *layer.mixture;
  const int64_t hidden = spec_.hidden, count = spec_.experts_per_token;
  const auto norm_if_any = [&](const Norm& norm, float* x) {
    if (norm.exists()) this->norm(norm, x, hidden, x);
  };
  float* sum = nullptr;
  for (int64_t place = 0; place < count; ++place) {
    const Choice& choice = choices_[static_cast<size_t>(row * count + place)];
    float* const from = slot_outputs(mixture) + choice.slot * hidden;
    kernels_.scale(from, choice.share * spec_.residual_scale, hidden);
    if (place == 0)
      sum = from;
    else
      kernels_.add(sum, from, hidden);
  }
  norm_if_any(mixture.experts_post_norm, sum);
  if (mixture.has_shared()) {
    float* const shared = aside_.data() + row * hidden;
    norm_if_any(mixture.shared_post_norm, shared);
    kernels_.scale(shared, shared_gates_[static_cast<size_t>(row)], hidden);
    kernels_.add(sum, shared, hidden);
  }
  norm_if_any(layer.feed_forward_post_norm, sum);
  float* const residual = residual_.data() + row * hidden;
  kernels_.add(residual, sum, hidden);
  if (layer.output_scale != 1.0f && !layer.per_layer.exists())
    kernels_.scale(residual, layer.output_scale, hidden);
}

}  // namespace specqd
