// The embeddings of tokens, the first residual stream.
#include <cstring>
#include <vector>

#include "kernels/bf16.h"
#include "model/blocks.h"
#include "model/products.h"

namespace specqd {
namespace {

class EmbeddingBlock : public Block {
 public:
  explicit EmbeddingBlock(const DecoderWeights& weights)
      : embedding_(weights.embedding), head_(weights.head) {
    if (weights.context == nullptr || weights.context->embedding == nullptr) return;
    embedding_ = nullptr;
    head_ = weights.context->embedding;
  }

  void run(Team& team, Batch& batch, const RowInputs&, Destination) const override {
    const int64_t hidden = batch.traits.spec.hidden;
    const float scale = batch.traits.spec.embedding_scale;
    team.stage("embedding");
    team.share(batch.rows, 1, [&](int64_t first, int64_t last) {
      std::vector<uint16_t> bits(static_cast<size_t>(hidden));
      for (int64_t row = first; row < last; ++row) {
        const int64_t token = batch.tokens[static_cast<size_t>(row)];
        if (embedding_ != nullptr)
          std::memcpy(bits.data(), embedding_ + token * hidden * 2,
                      static_cast<size_t>(hidden) * 2);
        else
          head_->read_row(batch.traits.kernels, token, bits.data());
        float* const out = batch.residual_of(row);
        for (int64_t i = 0; i < hidden; ++i) out[i] = bf16_to_float(bits[static_cast<size_t>(i)]);
        if (scale != 1.0f) batch.traits.kernels.scale(out, scale, hidden);
      }
    });
  }

  std::vector<BlockMatrix> matrices() const override { return {}; }
  size_t scratch_bytes() const override { return 0; }

 private:
  const uint8_t* embedding_;  // BF16 [vocabulary, hidden]; null: the rows of the output head
  std::shared_ptr<PackedWeight> head_;  // or another matrix with an embedding in each row
};

}  // namespace

std::unique_ptr<Block> make_embedding(const DecoderWeights& weights) {
  return std::make_unique<EmbeddingBlock>(weights);
}

}  // namespace specqd
