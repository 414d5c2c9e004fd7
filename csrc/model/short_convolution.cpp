// docs/exactness.md gives the order of the sums.
#include "model/short_convolution.h"

#include <algorithm>
#include <cstring>

#include "model/blocks.h"
#include "model/products.h"

namespace specqd {
namespace {

constexpr int64_t kWidestKernel = 8;
constexpr int64_t kPartChannels = 128;  // channels that one thread convolves at once
static_assert(kPartChannels <= kLargestConvolvedPart);

// A convolution between gates: out = gate_out * conv(gate_in * value).
class ShortConvolutionBlock : public Block {
 public:
  ShortConvolutionBlock(const LayerWeights& layer, int64_t state_layer, const BlockSetting& setting)
      : convolution_(layer, state_layer, setting.traits),
        channels_(setting.traits.spec.states.channels),
        in_(layer.query_key_value),
        out_(layer.output),
        in_bias_(layer.query_key_value_bias),
        out_bias_(layer.output_bias),
        inputs_(scratch_.add<float>(setting.max_rows * in_->rows())) {}

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override {
    const int64_t width = in_->rows();
    float* const gates = inputs_.in(batch.scratch);
    apply(team, batch, "inputs of the recurrence", *in_, inputs,
          keep_outputs(batch, {{0, width, gates, width, &in_bias_}}));
    record(team, batch, "inputs of the recurrence", gates, width, width);
    const int64_t parts = (channels_ + kPartChannels - 1) / kPartChannels;
    team.stage("recurrence");
    team.share(std::ssize(batch.sequences) * parts, 1, [&](int64_t item, int64_t) {
      convolve(batch, static_cast<size_t>(item / parts), item % parts * kPartChannels);
    });
    record(team, batch, "recurrence", gates + channels_, channels_, width);
    apply(team, batch, "output", *out_, rows_at(gates + channels_, width),
          put_output(batch, out_bias_, to));
  }

  std::vector<BlockMatrix> matrices() const override {
    return {{in_.get(), "query_key_value"}, {out_.get(), "output"}};
  }
  size_t scratch_bytes() const override { return scratch_.bytes(); }

 private:
  void convolve(Batch& batch, size_t sequence, int64_t first) const;

  ShortConvolution convolution_;
  int64_t channels_;
  std::shared_ptr<PackedWeight> in_, out_;
  Vector in_bias_, out_bias_;
  ScratchLayout scratch_;
  Scratch<float> inputs_;  // [rows][input gates; output gates; values]
};

// Runs all rows of a sequence through a part of the channels, from `first`. The outputs replace the
// output gates.
void ShortConvolutionBlock::convolve(Batch& batch, size_t sequence, int64_t first) const {
  const SequenceRows& rows = batch.sequences[sequence];
  const int64_t count = std::min(kPartChannels, channels_ - first);
  const SequenceStates& states = batch.cache->states().of(rows.sequence);
  float mixed[kPartChannels];
  for (const StateStep& step : batch.states.steps_of(sequence)) {
    for (int64_t position = step.first; position < step.last; ++position) {
      const int64_t row = rows.first_row + position - rows.start;
      float* const gates = inputs_.in(batch.scratch) + row * 3 * channels_ + first;
      for (int64_t i = 0; i < count; ++i) mixed[i] = gates[i] * gates[2 * channels_ + i];
      convolution_.run(states, position, first, count, mixed, mixed);
      float* const out = gates + channels_;
      for (int64_t i = 0; i < count; ++i) out[i] *= mixed[i];
    }
    if (step.to != nullptr) convolution_.keep_inputs(states, step, first, count);
  }
}

}  // namespace

void ShortConvolution::run(const SequenceStates& states, int64_t position, int64_t first,
                           int64_t count, const float* in, float* out) const {
  static constexpr uint16_t kBeforeText[kLargestConvolvedPart] = {};
  const StateShape& shape = traits_.spec.states;
  const uint16_t* inputs[kWidestKernel];
  traits_.kernels.round_bf16_finite(in, count, states.inputs(layer_, position) + first);
  for (int64_t i = 0; i < shape.kernel_width; ++i) {
    const int64_t from = position + i - (shape.kernel_width - 1);
    inputs[i] = from < 0 ? kBeforeText : states.inputs(layer_, from) + first;
  }
  traits_.kernels.short_conv(
      {inputs, weight_.data() + first, shape.channels, shape.kernel_width, has_activation_}, count,
      out);
  if (!bias_.empty()) traits_.kernels.add_bf16(out, bias_.data() + first, count);
}

void ShortConvolution::keep_inputs(const SequenceStates& states, const StateStep& step,
                                   int64_t first, int64_t count) const {
  for (int64_t back = 1; back <= traits_.spec.states.earlier_rows(); ++back)
    std::copy_n(states.inputs(layer_, step.anchor + kDeltaChunk - back) + first, count,
                step.to->inputs(layer_, back) + first);
}

std::unique_ptr<Block> make_short_convolution(const LayerWeights& layer, int64_t state_layer,
                                              const BlockSetting& setting) {
  return std::make_unique<ShortConvolutionBlock>(layer, state_layer, setting);
}

}  // namespace specqd
