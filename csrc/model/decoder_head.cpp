// The head of the decoder: logits of all tokens, or of those that a draft bothers to read.
#include <algorithm>
#include <cstring>
#include <limits>

#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr int64_t kPicksBetweenChoices = 16;
constexpr int64_t kLogitsOfClaim = 8192;

}  // namespace

void Decoder::draft_for(const Decoder& target, Precision precision, size_t verify_bytes) {
  partial_head_ = target.partial_head_;
  is_target_ = &target == this;
  head_choices_[static_cast<size_t>(precision)] = {verify_bytes};
}

void Decoder::tell_picked(std::span<const int32_t> picks, std::span<const int32_t> proposal) const {
  if (tells()) partial_head_->picked(picks, proposal);
}

// Rows without logits are a prompt's; those with them were picked, or are a proposal.
void Decoder::tell_read(std::span<const int32_t> tokens, std::span<const ForwardRows> sequences) {
  if (!tells()) return;
  size_t first = 0;
  for (const ForwardRows& part : sequences) {
    partial_head_->read(tokens.subspan(first, static_cast<size_t>(part.count - part.logits)));
    first += static_cast<size_t>(part.count);
  }
}

int64_t Decoder::ids_that_pay() {
  HeadChoice& choice = head_choices_[static_cast<size_t>(precision_)];
  const int64_t picks = partial_head_->num_picks();
  if (choice.picks >= 0 && picks - choice.picks < kPicksBetweenChoices) return choice.ids;
  const size_t head = bytes_of(*weights_.head, precision_);
  const int64_t panels = weights_.head->matrix().panels;
  choice.picks = picks;
  choice.ids = partial_head_->ids_that_pay({static_cast<double>(weight_bytes(precision_) - head),
                                            static_cast<double>(head) / static_cast<double>(panels),
                                            panels, static_cast<double>(choice.verify_bytes)});
  return choice.ids;
}

void Decoder::plan_head(const HeadUse& head) {
  head_precision_ = head.is_exact ? Precision::kExact : precision_;
  const int64_t panels = weights_.head->matrix().panels;
  const int64_t ids = head.ids == HeadUse::kAsPays ? ids_that_pay() : head.ids;
  if (ids == HeadUse::kAll) {  // a target's: the partial_head remembers what drafts read
    head_runs_.assign(1, {0, panels, 0});
    head_panels_ = panels;
  } else {
    head_panels_ = partial_head_->list(ids, panels, head_runs_);
  }
  moved_bytes_ -= bytes_of(*weights_.head, precision_);
  moved_bytes_ += bytes_of(*weights_.head, head_precision_) * static_cast<size_t>(head_panels_) /
                  static_cast<size_t>(panels);
}

// An earlier forward may have left anything where this one leaves nothing.
void Decoder::leave_out(Team& team) {
  const int64_t count = logit_rows() * logits_stride_;
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
  multiply_runs(team, head_precision_, *weights_.head, head_runs_,
                prepare(team, head_precision_, asked, *weights_.head, asked_row),
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
