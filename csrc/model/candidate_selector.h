// Ranks the best candidates for a row again, by the token before it (SelectorWeights).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/block.h"
#include "model/decoder_spec.h"

namespace specqd {

class CandidateSelector {
 public:
  // `final_norm` is that of the output head.
  CandidateSelector(std::shared_ptr<const SelectorWeights> weights, const Norm& final_norm,
                    int64_t vocabulary, int64_t max_rows);

  BlockMatrix matrix() const {
    return {.weight = weights_->projection.get(), .is_always_exact = true};
  }
  // Projects the rows with logits. Every thread calls it, after the last layer.
  void run(Team& team, Batch& batch);
  // The logits of a row of the last forward after `previous`, those of the candidates ranked again.
  // The others are -infinity, or unchanged for sampling, because a target often samples a token
  // that is not a candidate. Valid until the next call.
  std::span<const float> select(std::span<const float> logits, int64_t row, int32_t previous,
                                bool is_sampled);

 private:
  void choose(std::span<const float> logits);

  std::shared_ptr<const SelectorWeights> weights_;
  Norm final_norm_;
  std::vector<float> projected_;     // [logit rows][rank]
  std::vector<int32_t> candidates_;  // of the last selection, best first
  std::vector<float> selected_;      // [vocabulary]
};

}  // namespace specqd
