// The head of the decoder: logits of all tokens, or of those that a draft reads.
#include <algorithm>
#include <cstring>
#include <limits>

#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr int64_t kLogitsOfClaim = 8192;

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

void Decoder::plan_head(HeadUse head) {
  const int64_t panels = weights_.head->matrix().panels;
  head_panels_ = panels;
  if (head == HeadUse::kPartial)
    head_panels_ = partial_head_->list(panels, head_runs_);
  else
    head_runs_.assign(1, {0, panels, 0});
  const size_t bytes = bytes_of(*weights_.head, precision_);
  moved_bytes_ -= bytes - bytes * static_cast<size_t>(head_panels_) / static_cast<size_t>(panels);
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

void Decoder::finish(Team& team) {
  const int64_t asked = logit_rows();
  if (asked == 0) return;
  if (head_panels_ < weights_.head->matrix().panels) leave_out(team);
  const auto last = normed(weights_.final_norm);
  const auto asked_row = [&](int64_t i, float* scratch) {
    return last(logit_rows_[static_cast<size_t>(i)], scratch);
  };
  multiply_runs(team, "head", precision_, *weights_.head, head_runs_,
                prepare(team, precision_, asked, *weights_.head, asked_row),
                [&](int64_t first, int64_t count, float* result, int64_t stride) {
                  for (int64_t i = 0; i < asked; ++i) {
                    float* const from = result + i * stride;
                    if (spec_.logit_cap > 0.0f)
                      kernels_.soft_cap(from, count, spec_.logit_scale, spec_.logit_cap);
                    else if (spec_.logit_scale != 1.0f)
                      kernels_.scale(from, spec_.logit_scale, count);
                    std::memcpy(logits_.data() + i * logits_stride_ + first, from,
                                static_cast<size_t>(count) * sizeof(float));
                  }
                });
}

}  // namespace specqd
