// A feed forward that every row passes through: a layer's only one, or the shared one of experts.
#include "model/activation.h"
#include "model/blocks.h"
#include "model/products.h"

namespace specqd {
namespace {

Xielu curve_of(const FeedForward& weights) {
  const std::vector<float>& curve = weights.curve;
  return {curve[0], curve[1], curve[2], curve[3]};
}

class FeedForwardBlock : public Block {
 public:
  FeedForwardBlock(const FeedForward& weights, const std::string& inputs,
                   const BlockSetting& setting)
      : weights_(weights),
        inputs_(inputs),
        hidden_(scratch_.add<float>(setting.max_rows * weights.down->columns())) {}

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override {
    const int64_t width = weights_.down->columns();
    float* const hidden = hidden_.in(batch.scratch);
    apply(team, batch, "gate and up", *weights_.gate_up, inputs,
          [&](int64_t first, int64_t count, float* result, int64_t stride) {
            activate(batch.traits, weights_, first, count, result, stride, batch.rows, hidden);
          });
    record(team, batch, "gate and up", hidden, width, width);
    apply(team, batch, "down", *weights_.down, rows_at(hidden, width),
          put_output(batch, weights_.down_bias, to));
  }

  std::vector<BlockMatrix> matrices() const override {
    return {{weights_.gate_up.get(), inputs_ + "gate_up"}, {weights_.down.get(), inputs_ + "down"}};
  }
  size_t scratch_bytes() const override { return scratch_.bytes(); }

 private:
  FeedForward weights_;
  std::string inputs_;
  ScratchLayout scratch_;
  Scratch<float> hidden_;  // [rows][width]
};

}  // namespace

void activate(const Traits& traits, const FeedForward& weights, int64_t first, int64_t count,
              float* result, int64_t stride, int64_t rows, float* out) {
  const bool is_gated = traits.spec.is_gated;
  const Kernels& kernels = traits.kernels;
  const int64_t width = weights.down->columns(), step = is_gated ? 2 * kPanel : count;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < count; i += step) {
      const int64_t at = is_gated ? (first + i) / 2 : first;
      const int64_t kept = std::min<int64_t>(is_gated ? kPanel : count, width - at);
      float* const gate = result + row * stride + i;
      float* const up = is_gated ? gate + kPanel : nullptr;
      if (!weights.gate_bias.empty()) kernels.add_bf16(gate, weights.gate_bias.data() + at, kept);
      if (!weights.up_bias.empty()) kernels.add_bf16(up, weights.up_bias.data() + at, kept);
      float* const activated = out + row * width + at;
      if (weights.curve.empty())
        traits.activate(gate, up, kept, activated);
      else
        kernels.xielu(gate, kept, curve_of(weights), activated);
    }
}

std::unique_ptr<Block> make_feed_forward(const FeedForward& weights, const std::string& inputs,
                                         const BlockSetting& setting) {
  return std::make_unique<FeedForwardBlock>(weights, inputs, setting);
}

}  // namespace specqd
