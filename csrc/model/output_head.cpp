#include "model/output_head.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/products.h"

namespace specqd {
namespace {

constexpr int64_t kLogitsOfClaim = 8192;
// The best tokens of a draft are in few panels of the output head. If a draft reads this many
// panels exactly, it is accepted almost as often as with an exact output head; docs/levels.md has
// the measurement.
constexpr int64_t kBestPanels = 8;

}  // namespace

OutputHead::OutputHead(const DecoderWeights& weights, const Traits& traits)
    : traits_(traits),
      final_norm_(weights.final_norm),
      weight_(weights.head),
      partial_head_(std::make_shared<PartialHead>(traits.spec.vocabulary)),
      is_target_(weights.entry == nullptr && weights.context == nullptr) {}

void OutputHead::draft_for(const OutputHead& target) {
  partial_head_ = target.partial_head_;
  is_target_ = &target == this;
}

void OutputHead::record_sampled(std::span<const int32_t> tokens) const {
  if (records_) partial_head_->record(tokens);
}

size_t OutputHead::bytes(Precision precision, int64_t count) const {
  return bytes_of(*weight_, precision) * static_cast<size_t>(count) / static_cast<size_t>(panels());
}

int64_t OutputHead::exact_panels() const { return std::min(kBestPanels, read_panels_); }

void OutputHead::plan(Batch& batch, HeadUse use, std::span<const ForwardRows> sequences) {
  records_ = is_target_ && batch.precision == Precision::kExact && use != HeadUse::kNone;
  if (records_) {
    // Rows without logits belong to a prompt. Tokens of rows with logits were recorded when they
    // were sampled, or are only proposed.
    size_t first = 0;
    for (const ForwardRows& part : sequences) {
      partial_head_->record(
          batch.tokens.subspan(first, static_cast<size_t>(part.count - part.logits)));
      first += static_cast<size_t>(part.count);
    }
  }
  const int64_t rows = batch.logit_row_count();
  keeps_hidden_ = use == HeadUse::kNone;
  if (keeps_hidden_) {
    hidden_.resize(static_cast<size_t>(rows * traits_.spec.hidden));
    batch.moved_bytes -= bytes(batch.precision, panels());
    return;
  }
  const size_t needed = static_cast<size_t>(rows * panels() * kPanel);
  if (logits_.size() < needed) logits_.resize(needed);
  read_panels_ = panels();
  if (use == HeadUse::kPartial)
    read_panels_ = partial_head_->list(panels(), runs_);
  else
    runs_.assign(1, {0, panels(), 0});
  batch.moved_bytes -= bytes(batch.precision, panels()) - bytes(batch.precision, read_panels_);
  if (batch.precision == Precision::kExact) return;
  const int64_t best = rows * exact_panels();
  best_panels_.resize(static_cast<size_t>(best));
  panel_maxima_.resize(static_cast<size_t>(rows * panels()));
  batch.moved_bytes += bytes(Precision::kExact, best);
}

std::span<const float> OutputHead::hidden(int64_t row) const {
  const int64_t width = traits_.spec.hidden;
  return {hidden_.data() + row * width, static_cast<size_t>(width)};
}

void OutputHead::keep_hidden(Team& team, const Batch& batch) {
  const int64_t width = traits_.spec.hidden;
  const RowInputs rows = normed(batch, final_norm_);
  team.stage("hidden");
  team.share(batch.logit_row_count(), 1, [&](int64_t i, int64_t) {
    float* const out = hidden_.data() + i * width;
    const float* const row = rows(batch.logit_rows[static_cast<size_t>(i)], out);
    if (row != out) std::memcpy(out, row, static_cast<size_t>(width) * sizeof(float));
  });
}

std::span<const float> OutputHead::logits(int64_t row) const {
  return {logits_.data() + row * panels() * kPanel, static_cast<size_t>(traits_.spec.vocabulary)};
}

// An earlier forward may have written logits that this one leaves out.
void OutputHead::clear_logits(Team& team, int64_t rows) {
  team.stage("logits left out");
  team.share(rows * panels() * kPanel, kLogitsOfClaim, [&](int64_t first, int64_t last) {
    std::fill(logits_.data() + first, logits_.data() + last,
              -std::numeric_limits<float>::infinity());
  });
}

// Scales and caps `count` outputs of the head from `first` on, and stores them as a row's logits.
void OutputHead::put_logits(int64_t row, int64_t first, int64_t count, float* outputs) {
  const DecoderSpec& spec = traits_.spec;
  if (spec.logit_cap > 0.0f)
    traits_.kernels.soft_cap(outputs, count, spec.logit_scale, spec.logit_cap);
  else if (spec.logit_scale != 1.0f)
    traits_.kernels.scale(outputs, spec.logit_scale, count);
  std::memcpy(logits_.data() + row * panels() * kPanel + first, outputs,
              static_cast<size_t>(count) * sizeof(float));
}

void OutputHead::run(Team& team, Batch& batch) {
  const int64_t rows = batch.logit_row_count();
  if (rows == 0) return;
  if (keeps_hidden_) return keep_hidden(team, batch);
  if (read_panels_ < panels()) clear_logits(team, rows);
  const bool is_draft = batch.precision == Precision::kFp4;
  const auto row_with_logits = normed_logit_rows(batch, final_norm_);
  multiply_runs(team, batch, "head", batch.precision, *weight_, runs_,
                prepare(team, batch, batch.precision, rows, *weight_, row_with_logits),
                [&](int64_t first, int64_t count, float* result, int64_t stride) {
                  for (int64_t i = 0; i < rows; ++i) {
                    float* const outputs = result + i * stride;
                    put_logits(i, first, count, outputs);
                    if (is_draft)
                      traits_.kernels.panel_maxima(
                          outputs, count / kPanel,
                          panel_maxima_.data() + i * panels() + first / kPanel);
                  }
                });
  if (is_draft) {
    choose_panels(team, rows);
    reread_panels(team, batch,
                  prepare(team, batch, Precision::kExact, rows, *weight_, row_with_logits));
  }
  if (batch.bits != nullptr)
    batch.bits->add(team, "logits", logits_.data(), rows, traits_.spec.vocabulary,
                    panels() * kPanel);
}

// Lists the panels with the largest logits of each row, in descending order. Of equal panels, the
// earlier one comes first.
void OutputHead::choose_panels(Team& team, int64_t rows) {
  const int64_t most = exact_panels();
  team.stage("best panels");
  team.share(rows, 1, [&](int64_t row, int64_t) {
    const float* const maxima = panel_maxima_.data() + row * panels();
    int64_t* const best = best_panels_.data() + row * most;
    int64_t count = 0;
    for (const PanelRun& run : runs_)
      for (int64_t panel = run.first; panel < run.last; ++panel) {
        if (count == most && !(maxima[panel] > maxima[best[most - 1]])) continue;
        int64_t at = count < most ? count++ : most - 1;
        for (; at > 0 && maxima[panel] > maxima[best[at - 1]]; --at) best[at] = best[at - 1];
        best[at] = panel;
      }
  });
}

// Replaces the logits of the listed panels by exact ones.
void OutputHead::reread_panels(Team& team, Batch& batch, const PreparedRows& x) {
  const PackedMatrix& matrix = weight_->matrix(team.node());
  const int64_t most = exact_panels();
  const size_t panel_bytes = bytes(Precision::kExact, 1);
  float* const out = batch.scratch_of(team).products();
  team.stage("exact panels");
  team.share(std::ssize(best_panels_), 1, [&](int64_t i, int64_t) {
    const int64_t row = i / most, panel = best_panels_[static_cast<size_t>(i)];
    const PreparedRows one{x.data + static_cast<size_t>(row) * x.stride, x.stride, 1};
    traits_.kernels.exact_product(matrix, panel, panel + 1, one, out, kPanel);
    team.tally(matrix.panels, panel, panel + 1, panel_bytes);
    put_logits(row, panel * kPanel, kPanel, out);
  });
}

}  // namespace specqd
