#include "model/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace specqd {

void StatePlan::plan(const KvCache& cache, std::span<const ForwardRows> sequences) {
  steps_.clear();
  starts_.assign(1, 0);
  bytes_ = 0;
  RecurrentStates& states = cache.states();
  if (!states.exist()) return;
  states.begin_forward();
  const int64_t state = states.shape().state_bytes(), row = states.shape().row_bytes();
  for (const ForwardRows& part : sequences) {
    states.plan(part.sequence, part.start, part.start + part.count, part.settled, steps_);
    for (size_t i = starts_.back(); i < steps_.size(); ++i) {
      const StateStep& step = steps_[i];
      // A delta rule reads the rows since the anchor. A convolution alone reads only the rows right
      // before.
      const int64_t before = state > 0 ? step.first - step.anchor : states.shape().earlier_rows();
      bytes_ += (step.from != nullptr ? state : 0) + (step.to != nullptr ? state : 0) +
                row * (std::min(before, step.first) + step.last - step.first);
    }
    starts_.push_back(steps_.size());
  }
}

std::span<const StateStep> StatePlan::steps_of(size_t sequence) const {
  return std::span(steps_).subspan(starts_[sequence], starts_[sequence + 1] - starts_[sequence]);
}

Batch::Batch(const Traits& all_traits, std::span<const AttentionKind> kinds,
             std::vector<int64_t> strip_heads, int thread_count, int64_t most_rows)
    : traits(all_traits), max_rows(most_rows), page_weights(std::move(strip_heads)) {
  for (const AttentionKind& kind : kinds)
    attentions.emplace_back(traits.spec.attentions[static_cast<size_t>(kind.shape)], kind.longest,
                            traits.kernels, thread_count, max_rows);
  residual.resize(static_cast<size_t>(max_rows * traits.spec.hidden));
  aside.resize(residual.size());
  threads.resize(static_cast<size_t>(thread_count));
}

void Batch::begin(const ForwardRequest& request) {
  precision = request.precision;
  cache = &request.cache;
  tokens = request.tokens;
  pair_inputs = request.pairs;
  sequences.clear();
  logit_rows.clear();
  rows = 0;
  for (const ForwardRows& part : request.sequences) {
    sequences.push_back({part.sequence, part.start, part.count, rows, part.choice});
    rows += part.count;
    for (int64_t i = part.logits; i > 0; --i) logit_rows.push_back(rows - i);
  }
  all_sequences = sequences;
  plan_page_weights(request.sequences);
  for (PagedAttention& attention : attentions) attention.plan(sequences, weighed_rows);
  states.plan(*cache, request.sequences);
}

// Rows with logits weigh all pages of their sequence, if it wants that.
void Batch::plan_page_weights(std::span<const ForwardRows> parts) {
  weighed_rows.clear();
  std::vector<int64_t> pages;  // by row with logits
  for (const ForwardRows& part : parts) {
    const int64_t all = (part.start + part.count + kPagePositions - 1) / kPagePositions;
    pages.insert(pages.end(), static_cast<size_t>(part.logits), part.weighs_pages ? all : 0);
  }
  page_weights.begin(pages);
  if (std::ranges::all_of(pages, [](int64_t each) { return each == 0; })) return;
  weighed_rows.assign(static_cast<size_t>(rows), kNotWeighed);
  for (size_t i = 0; i < pages.size(); ++i)
    if (pages[i] > 0) weighed_rows[static_cast<size_t>(logit_rows[i])] = static_cast<int32_t>(i);
}

std::span<float> Batch::page_weights_of(int64_t strip, int64_t row, int64_t head) {
  if (strip == kNoStrip || weighed_rows.empty()) return {};
  const int32_t at = weighed_rows[static_cast<size_t>(row)];
  if (at == kNotWeighed) return {};
  return page_weights.of(strip, at, head);
}

void Batch::keep_rows_with_logits() {
  const auto keep = [&](std::vector<float>& values) {
    const int64_t width = std::ssize(values) / max_rows;
    for (int64_t i = 0; i < logit_row_count(); ++i)
      std::copy_n(values.begin() + logit_rows[static_cast<size_t>(i)] * width, width,
                  values.begin() + i * width);
  };
  keep(residual);
  keep(per_layer);
  rows = 0;
  for (SequenceRows& part : sequences) {
    const int64_t end = part.first_row + part.count;
    const auto kept = std::ranges::count_if(
        logit_rows, [&](int64_t row) { return part.first_row <= row && row < end; });
    part = {part.sequence, part.start + part.count - kept, kept, rows, part.choice};
    rows += kept;
  }
  std::erase_if(sequences, [](const SequenceRows& part) { return part.count == 0; });
  if (!weighed_rows.empty()) {
    for (size_t i = 0; i < logit_rows.size(); ++i)
      weighed_rows[i] = weighed_rows[static_cast<size_t>(logit_rows[i])];
    weighed_rows.resize(logit_rows.size());
  }
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  for (PagedAttention& attention : attentions) attention.plan(sequences, weighed_rows);
}

}  // namespace specqd
