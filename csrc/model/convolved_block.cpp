// A block between two causal convolutions over the rows of a forward, whose coefficients depend on
// the block's inputs (DFlash2).
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "kernels/bf16.h"
#include "model/blocks.h"
#include "model/products.h"

namespace specqd {
namespace {

enum Side : int64_t { kInputs = 0, kOutputs = 1 };

class ConvolvedBlock : public Block {
 public:
  ConvolvedBlock(std::unique_ptr<Block> inner, const DynamicConvolution& weights,
                 const BlockSetting& setting)
      : inner_(std::move(inner)), weights_(weights), hidden_(setting.traits.spec.hidden) {
    const int64_t per_row = 2 * weights_.taps * weights_.groups;
    if (per_row <= 0 || hidden_ % weights_.groups != 0 || weights_.projection->rows() != per_row ||
        std::ssize(weights_.base) != 2 * weights_.taps * hidden_)
      throw std::invalid_argument("the sizes of a convolution do not match");
    scratch_.add<uint8_t>(static_cast<int64_t>(inner_->scratch_bytes()));  // at its own offsets
    rows_ = scratch_.add<float>(setting.max_rows * hidden_);
    coefficients_ = scratch_.add<float>(setting.max_rows * per_row);
  }

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override {
    if (to == Destination::kCache) return inner_->run(team, batch, inputs, to);
    const int64_t per_row = weights_.projection->rows();
    float* const rows = rows_.in(batch.scratch);
    apply(team, batch, "coefficients of convolutions", *weights_.projection, inputs,
          keep_outputs(batch, {{0, per_row, coefficients_.in(batch.scratch), per_row}}));
    team.stage("convolution");
    team.share(batch.rows, 1,
               [&](int64_t row, int64_t) { convolve(team, batch, kInputs, inputs, row); });
    record(team, batch, "convolved inputs", rows, hidden_, hidden_);
    inner_->run(team, batch, rows_at(rows, hidden_), Destination::kAside);
    team.stage("convolution");
    team.share(batch.rows, 1, [&](int64_t row, int64_t) {
      convolve(team, batch, kOutputs, rows_at(batch.aside.data(), hidden_), row);
      batch.traits.kernels.add(batch.residual_of(row), rows + row * hidden_, hidden_);
    });
  }

  std::vector<BlockMatrix> matrices() const override {
    std::vector<BlockMatrix> all = inner_->matrices();
    all.push_back({.weight = weights_.projection.get()});
    return all;
  }
  size_t scratch_bytes() const override { return scratch_.bytes(); }
  int64_t cache_words(std::span<const SequenceRows> sequences) const override {
    return inner_->cache_words(sequences);
  }

 private:
  // Leaves a convolved row in `rows_`. Rows before those of its sequence count as zero.
  void convolve(Team& team, Batch& batch, Side side, const RowInputs& from, int64_t row) const {
    const auto next = std::ranges::upper_bound(batch.sequences, row, {}, &SequenceRows::first_row);
    const int64_t taps = std::min(weights_.taps, row - std::prev(next)->first_row + 1);
    const int64_t channels = hidden_ / weights_.groups;  // of a group
    float* const out = rows_.in(batch.scratch) + row * hidden_;
    const float* const dynamic =
        coefficients_.in(batch.scratch) + (2 * row + side) * weights_.taps * weights_.groups;
    std::fill_n(out, hidden_, 0.0f);
    for (int64_t tap = 0; tap < taps; ++tap) {
      const uint16_t* const base = weights_.base.data() + (side * weights_.taps + tap) * hidden_;
      const float* const x = from(row - tap, batch.scratch_of(team).floats());
      for (int64_t group = 0, i = 0; group < weights_.groups; ++group) {
        const float added = dynamic[tap * weights_.groups + group];
        for (const int64_t end = i + channels; i < end; ++i)
          out[i] += (bf16_to_float(base[i]) + added) * x[i];
      }
    }
  }

  std::unique_ptr<Block> inner_;
  DynamicConvolution weights_;
  int64_t hidden_;
  ScratchLayout scratch_;
  Scratch<float> rows_;          // convolved inputs, then convolved outputs: [rows][hidden]
  Scratch<float> coefficients_;  // [rows][2][taps][groups]
};

}  // namespace

std::unique_ptr<Block> make_convolved(std::unique_ptr<Block> inner,
                                      const DynamicConvolution& weights,
                                      const BlockSetting& setting) {
  return std::make_unique<ConvolvedBlock>(std::move(inner), weights, setting);
}

}  // namespace specqd
