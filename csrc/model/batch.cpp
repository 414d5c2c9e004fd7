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
  int64_t weighed_pages = 0;
  for (const ForwardRows& part : request.sequences) {
    sequences.push_back({part.sequence, part.start, part.count, rows, part.choice});
    rows += part.count;
    for (int64_t i = part.logits; i > 0; --i) logit_rows.push_back(rows - i);
    const int64_t pages = (part.start + part.count + kPagePositions - 1) / kPagePositions;
    if (part.weighs_pages) weighed_pages = std::max(weighed_pages, pages);
  }
  all_sequences = sequences;
  plan_page_weights(request.sequences, weighed_pages);
  for (PagedAttention& attention : attentions) attention.plan(sequences, weighed_rows);
  states.plan(*cache, request.sequences);
}

// Rows with logits that weigh pages, in sequences that attend to at most `pages` pages.
void Batch::plan_page_weights(std::span<const ForwardRows> parts, int64_t pages) {
  weighed_rows.clear();
  page_weights.begin(pages > 0 ? logit_row_count() : 0, pages);
  if (pages == 0) return;
  weighed_rows.assign(static_cast<size_t>(rows), kNotWeighed);
  int32_t logit_row = 0;
  for (const ForwardRows& part : parts)
    for (int64_t i = 0; i < part.logits; ++i, ++logit_row)
      if (part.weighs_pages)
        weighed_rows[static_cast<size_t>(logit_rows[static_cast<size_t>(logit_row)])] = logit_row;
}

std::span<float> Batch::page_weights_of(int64_t strip, int64_t row, int64_t head) {
  if (strip == kNoStrip || weighed_rows.empty()) return {};
  const int32_t at = weighed_rows[static_cast<size_t>(row)];
  if (at == kNotWeighed) return {};
  return {page_weights.of(strip, at, head), static_cast<size_t>(page_weights.pages())};
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
