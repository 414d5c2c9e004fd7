// The head of the decoder: logits of all tokens, or of those that a draft reads.
#include <algorithm>
#include <cstring>
#include <limits>

#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr int64_t kLogitsOfClaim = 8192;
// A draft's tokens lie in few panels of the head. With so many exact ones it agrees almost as often
// as with an exact head; docs/levels.md has the measurement.
constexpr int64_t kBestPanels = 8;

}  // namespace

void Decoder::tell_picked(std::span<const int32_t> picks) const {
  if (tells()) partial_head_->see(picks);
}

// Rows without logits are a prompt's; those with them were picked, or are a proposal.
void Decoder::tell_read(std::span<const int32_t> tokens, std::span<const ForwardRows> sequences) {
  if (!tells()) return;
  size_t first = 0;
  for (const ForwardRows& part : sequences) {
    partial_head_->see(tokens.subspan(first, static_cast<size_t>(part.count - part.logits)));
    first += static_cast<size_t>(part.count);
  }
}

size_t Decoder::head_bytes(Precision precision, int64_t panels) const {
  return bytes_of(*weights_.head, precision) * static_cast<size_t>(panels) /
         static_cast<size_t>(weights_.head->matrix().panels);
}

int64_t Decoder::exact_panels() const { return std::min(kBestPanels, head_panels_); }

void Decoder::plan_head(HeadUse head) {
  const int64_t panels = weights_.head->matrix().panels;
  head_panels_ = panels;
  if (head == HeadUse::kPartial)
    head_panels_ = partial_head_->list(panels, head_runs_);
  else
    head_runs_.assign(1, {0, panels, 0});
  moved_bytes_ -= head_bytes(precision_, panels) - head_bytes(precision_, head_panels_);
  if (precision_ == Precision::kExact) return;
  const int64_t best = logit_rows() * exact_panels();
  best_panels_.resize(static_cast<size_t>(best));
  panel_maxima_.resize(static_cast<size_t>(logit_rows() * panels));
  moved_bytes_ += head_bytes(Precision::kExact, best);
}

// An earlier forward may have left anything where this one leaves nothing.
void Decoder::leave_out(Team& team) {
  const int64_t count = logit_rows() * logits_stride_;
  team.stage("logits left out");
  team.share(count, kLogitsOfClaim, [&](int64_t first, int64_t last) {
    std::fill(logits_.data() + first, logits_.data() + last,
              -std::numeric_limits<float>::infinity());
  });
}

// Puts `count` raw outputs of the head from `first` on where the logits of a row lie.
void Decoder::put_logits(int64_t row, int64_t first, int64_t count, float* outputs) {
  if (spec_.logit_cap > 0.0f)
    kernels_.soft_cap(outputs, count, spec_.logit_scale, spec_.logit_cap);
  else if (spec_.logit_scale != 1.0f)
    kernels_.scale(outputs, spec_.logit_scale, count);
  std::memcpy(logits_.data() + row * logits_stride_ + first, outputs,
              static_cast<size_t>(count) * sizeof(float));
}

void Decoder::finish(Team& team) {
  const int64_t asked = logit_rows(), panels = weights_.head->matrix().panels;
  if (asked == 0) return;
  if (head_panels_ < panels) leave_out(team);
  const bool is_draft = precision_ == Precision::kFp4;
  const auto last = normed(weights_.final_norm);
  const auto asked_row = [&](int64_t i, float* scratch) {
    return last(logit_rows_[static_cast<size_t>(i)], scratch);
  };
  multiply_runs(team, "head", precision_, *weights_.head, head_runs_,
                prepare(team, precision_, asked, *weights_.head, asked_row),
                [&](int64_t first, int64_t count, float* result, int64_t stride) {
                  for (int64_t i = 0; i < asked; ++i) {
                    float* const outputs = result + i * stride;
                    put_logits(i, first, count, outputs);
                    if (is_draft)
                      kernels_.panel_maxima(outputs, count / kPanel,
                                            panel_maxima_.data() + i * panels + first / kPanel);
                  }
                });
  if (!is_draft) return;
  choose_panels(team);
  reread_panels(team, prepare(team, Precision::kExact, asked, *weights_.head, asked_row));
}

// Lists each row's panels with the largest logits, the largest first; the earlier of equal ones.
void Decoder::choose_panels(Team& team) {
  const int64_t panels = weights_.head->matrix().panels, most = exact_panels();
  team.stage("best panels");
  team.share(logit_rows(), 1, [&](int64_t row, int64_t) {
    const float* const maxima = panel_maxima_.data() + row * panels;
    int64_t* const best = best_panels_.data() + row * most;
    int64_t count = 0;
    for (const PanelRun& run : head_runs_)
      for (int64_t panel = run.first; panel < run.last; ++panel) {
        if (count == most && !(maxima[panel] > maxima[best[most - 1]])) continue;
        int64_t at = count < most ? count++ : most - 1;
        for (; at > 0 && maxima[panel] > maxima[best[at - 1]]; --at) best[at] = best[at - 1];
        best[at] = panel;
      }
  });
}

// Replaces the logits of the listed panels by exact ones.
void Decoder::reread_panels(Team& team, const PreparedRows& x) {
  const PackedMatrix& matrix = weights_.head->matrix(team.node());
  const int64_t most = exact_panels();
  const size_t panel_bytes = head_bytes(Precision::kExact, 1);
  float* const out = scratch_[static_cast<size_t>(team.thread())].products();
  team.stage("exact panels");
  team.share(std::ssize(best_panels_), 1, [&](int64_t i, int64_t) {
    const int64_t row = i / most, panel = best_panels_[static_cast<size_t>(i)];
    const PreparedRows one{x.data + static_cast<size_t>(row) * x.stride, x.stride, 1};
    kernels_.exact_product(matrix, panel, panel + 1, one, out, kPanel);
    team.tally(matrix.panels, panel, panel + 1, panel_bytes);
    put_logits(row, panel * kPanel, kPanel, out);
  });
}

}  // namespace specqd
