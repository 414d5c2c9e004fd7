// Per-layer embeddings: a token has one wide embedding, and each layer adds its own part of it.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/bf16.h"
#include "model/blocks.h"
#include "model/products.h"

namespace specqd {
namespace {

const Norm kNoNorm;
const Vector kNoBias;

// Makes the embeddings of all layers from the token and the residual stream.
class PerLayerEmbeddingBlock : public Block {
 public:
  PerLayerEmbeddingBlock(const PerLayerEmbedding& weights, Batch& batch) : weights_(weights) {
    batch.per_layer.resize(static_cast<size_t>(batch.max_rows * weights_.projection->rows()));
  }

  void run(Team& team, Batch& batch, const RowInputs&, Destination) const override {
    const PackedWeight& projection = *weights_.projection;
    const int64_t outputs = projection.rows();
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(batch.traits.spec.hidden));
    apply(team, batch, "per-layer embedding", projection, normed(batch, kNoNorm),
          [&](int64_t first, int64_t count, const float* result, int64_t stride) {
            const int64_t kept = std::min(count, outputs - first);
            for (int64_t row = 0; row < batch.rows; ++row) {
              const float* const from = result + row * stride;
              float* const out = batch.per_layer.data() + row * outputs + first;
              for (int64_t i = 0; i < kept; ++i) out[i] = from[i] * scale;
            }
          });
    team.stage("per-layer embedding");
    team.share(batch.rows, 1, [&](int64_t row, int64_t) { finish_row(batch, row); });
    record(team, batch, "per-layer embedding", batch.per_layer.data(), outputs, outputs);
  }

  std::vector<BlockMatrix> matrices() const override {
    return {{weights_.projection.get(), "per_layer"}};
  }
  size_t scratch_bytes() const override { return 0; }

 private:
  void finish_row(Batch& batch, int64_t row) const;

  PerLayerEmbedding weights_;
};

// Normalises a row's projection by layer, and adds the row of the table.
void PerLayerEmbeddingBlock::finish_row(Batch& batch, int64_t row) const {
  const Kernels& kernels = batch.traits.kernels;
  const int64_t width = weights_.width(), outputs = weights_.projection->rows();
  const float scale = __builtin_sqrtf(static_cast<float>(width));
  const float half = 1.0f / __builtin_sqrtf(2.0f);
  const int64_t token = batch.tokens[static_cast<size_t>(row)];
  std::vector<uint16_t> bits(static_cast<size_t>(width));
  std::vector<float> entry(static_cast<size_t>(width));
  for (int64_t first = 0; first < outputs; first += width) {
    float* const out = batch.per_layer.data() + row * outputs + first;
    batch.traits.norm(weights_.norm, out, width, out);
    std::memcpy(bits.data(), weights_.table + (token * outputs + first) * 2,
                static_cast<size_t>(width) * 2);
    std::ranges::transform(bits, entry.begin(), bf16_to_float);
    kernels.scale(entry.data(), scale, width);
    kernels.add(out, entry.data(), width);
    kernels.scale(out, half, width);
  }
}

// A layer's part of the embeddings, gated by the residual stream.
class PerLayerInputBlock : public Block {
 public:
  PerLayerInputBlock(const PerLayerInput& weights, int64_t layer_index, int64_t layers,
                     const BlockSetting& setting)
      : weights_(weights),
        width_(weights.projection->columns()),
        first_(layer_index * width_),
        stride_(layers * width_),
        gated_(scratch_.add<float>(setting.max_rows * width_)) {}

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override {
    float* const gated = gated_.in(batch.scratch);
    apply(team, batch, "per-layer gate", *weights_.gate, inputs,
          [&](int64_t first, int64_t count, const float* result, int64_t stride) {
            const int64_t kept = std::min(count, width_ - first);
            for (int64_t row = 0; row < batch.rows; ++row)
              batch.traits.activate(result + row * stride,
                                    batch.per_layer.data() + row * stride_ + first_ + first, kept,
                                    gated + row * width_ + first);
          });
    apply(team, batch, "per-layer projection", *weights_.projection, rows_at(gated, width_),
          put_output(batch, kNoBias, to));
  }

  std::vector<BlockMatrix> matrices() const override {
    return {{weights_.gate.get(), "per_layer_gate"},
            {weights_.projection.get(), "per_layer_projection"}};
  }
  size_t scratch_bytes() const override { return scratch_.bytes(); }

 private:
  PerLayerInput weights_;
  int64_t width_, first_, stride_;  // of the layer's part in a row's embeddings
  ScratchLayout scratch_;
  Scratch<float> gated_;  // [rows][width]
};

}  // namespace

std::unique_ptr<Block> make_per_layer_embedding(const PerLayerEmbedding& weights, Batch& batch) {
  return std::make_unique<PerLayerEmbeddingBlock>(weights, batch);
}

std::unique_ptr<Block> make_per_layer_input(const PerLayerInput& weights, int64_t layer_index,
                                            int64_t layers, const BlockSetting& setting) {
  return std::make_unique<PerLayerInputBlock>(weights, layer_index, layers, setting);
}

}  // namespace specqd
