// What the forwards of draft heads share: the features of the model that they draft for ("the model
// above"), its token ids, and sampling. Knows no rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/forward.h"

namespace specqd {

class FeatureForward : public DecoderForward {
 public:
  int64_t vocabulary() const override { return above_->vocabulary(); }
  int64_t max_positions() const override { return above_->max_positions(); }
  // A draft head with ids of its own has no partial output head.
  void read_partial_head() override {
    if (ids_.empty()) DecoderForward::read_partial_head();
  }
  // Samples the next token. A draft head cannot verify, so the proposal must be empty.
  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const std::shared_ptr<Sequence>& sequence) override;
  // Logits by the target's ids; -infinity for ids that the head does not have.
  std::span<const float> logits(int64_t row) override;

 protected:
  // `boundaries`: the layer boundaries of the model above whose values make up a feature, of
  // `feature_width` values; that model logs them from now on, and maybe others. `ids`: the target's
  // id of each of the head's tokens, ascending; if empty, the ids are the same.
  FeatureForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
                 Precision precision, std::shared_ptr<ModelForward> above,
                 std::vector<int64_t> boundaries, std::vector<int32_t> ids, int64_t feature_width);

  virtual std::span<const float> own_logits(int64_t row) = 0;
  bool has_own_ids() const { return !ids_.empty(); }

  // The log of a context of the model above, or an empty one if it holds other features than those
  // now tapped.
  const FeatureLog& log_of(Context& source) const;
  // Appends the feature of a position to `out`.
  void append_feature(Context& source, size_t position, std::vector<uint16_t>& out) const;

  std::shared_ptr<ModelForward> above_;

 private:
  std::vector<int64_t> boundaries_;
  std::vector<int32_t> ids_;
  FeatureLog no_log_;
  std::vector<float> by_target_id_;
};

}  // namespace specqd
