// The output head: the final norm, and the logits of all tokens or of those that a draft reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/block.h"
#include "model/decoder_spec.h"
#include "model/partial_head.h"

namespace specqd {

class OutputHead {
 public:
  // The output head of a draft head or block drafter, whose weights have an entry or a context,
  // records nothing.
  OutputHead(const DecoderWeights& weights, const Traits& traits);

  // Chooses the rows that drafts read. Exact forwards of a target record in it the tokens that they
  // read and those that are sampled from their logits.
  PartialHead& partial_head() const { return *partial_head_; }
  // Uses the partial head of `target`, for which this model drafts.
  void draft_for(const OutputHead& target);
  // Records tokens that were sampled from the last forward's logits.
  void record_sampled(std::span<const int32_t> tokens) const;

  const PackedWeight& weight() const { return *weight_; }
  BlockMatrix matrix() const { return {weight_.get(), "head"}; }
  const Norm& final_norm() const { return final_norm_; }

  // Chooses the panels that a forward reads, before it runs, and counts only their bytes.
  void plan(Batch& batch, HeadUse use, std::span<const ForwardRows> sequences);
  // Computes the logits. Every thread calls it.
  void run(Team& team, Batch& batch);

  // Whether the last forward kept the outputs of the final norm, [hidden], in place of logits.
  bool keeps_hidden() const { return keeps_hidden_; }
  std::span<const float> hidden(int64_t row) const;
  // Row `row` of the last forward's logits, [vocabulary].
  std::span<const float> logits(int64_t row) const;

 private:
  int64_t panels() const { return weight_->matrix().panels; }
  size_t bytes(Precision precision, int64_t panels) const;
  int64_t exact_panels() const;  // number of panels that each row of a draft reads exactly
  void keep_hidden(Team& team, const Batch& batch);
  void clear_logits(Team& team, int64_t rows);
  void put_logits(int64_t row, int64_t first, int64_t count, float* outputs);
  void choose_panels(Team& team, int64_t rows);
  void reread_panels(Team& team, Batch& batch, const PreparedRows& x);

  const Traits& traits_;
  Norm final_norm_;
  std::shared_ptr<PackedWeight> weight_;
  std::shared_ptr<PartialHead> partial_head_;
  bool is_target_;  // owns partial_head_

  // The last forward left these.
  bool keeps_hidden_ = false;
  bool records_ = false;              // whether the partial head records its tokens
  std::vector<PanelRun> runs_;        // panels that are read
  int64_t read_panels_ = 0;           // their number
  std::vector<float> panel_maxima_;   // of a draft's logits, [logit rows][panels]
  std::vector<int64_t> best_panels_;  // a draft reads them exactly, [logit rows][exact_panels()]
  std::vector<float> logits_;         // [logit rows][panels * kPanel]
  std::vector<float> hidden_;         // [logit rows][hidden]
};

}  // namespace specqd
