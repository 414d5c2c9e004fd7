// Makes the inputs of a draft head's rows: features or recycled hidden rows, each paired with the
// embedding of a token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/blocks.h"

namespace specqd {

class PairEntry : public Block {
 public:
  // Reserves room for pairs in the batch.
  PairEntry(const DecoderWeights& weights, Batch& batch);

  // Ignores inputs and destination: writes Batch::pairs and the residual stream.
  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override;
  std::vector<BlockMatrix> matrices() const override;
  size_t scratch_bytes() const override { return 0; }

  int64_t feature_width() const;  // values per row of features
  bool blanks_first() const { return entry_->blanks_first; }
  bool is_projected() const { return entry_->projection != nullptr; }  // else attention reads pairs
  // Writes the hidden row, BF16 [hidden], that a row of the last forward gives the next one.
  void recycle(const Batch& batch, int64_t row, std::span<uint16_t> out) const;

 private:
  const float* read_feature(const Batch& batch, int64_t row, float* scratch) const;
  void make_pair(Batch& batch, int64_t row, uint16_t* bits) const;

  std::shared_ptr<const HeadEntry> entry_;
  const uint8_t* embedding_;  // BF16 [vocabulary, hidden], where the entry has none
  Norm final_norm_;
  const Traits& traits_;
};

}  // namespace specqd
