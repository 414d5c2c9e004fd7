// Multi-head latent attention with absorbed matrices: all heads attend to one latent row per
// position, and each head has a small product before and after attention (docs/design.md).
#include <algorithm>
#include <cstring>

#include "model/blocks.h"
#include "model/head_attention.h"
#include "model/products.h"

namespace specqd {
namespace {

constexpr float kNormEpsilon = 1e-6f;  // of the queries' latent; the same in every model

// Multiplies each head's part of a row by the head's part of `weight`, and calls
// take(head, first_output, outputs, result, stride). A row's parts are consecutive in `x`. Ends
// with a barrier.
template <class Take>
void multiply_heads(Team& team, Batch& batch, const char* stage, const PackedWeight& weight,
                    int64_t heads, const PreparedRows& x, const Take& take) {
  team.stage(stage);
  const Kernels& kernels = batch.traits.kernels;
  const PackedMatrix& matrix = weight.matrix(team.node());
  float* const out = batch.scratch_of(team).products();
  const auto product =
      batch.precision == Precision::kFp4 ? kernels.draft_product : kernels.exact_product;
  const int64_t panels = matrix.panels / heads;
  const size_t panel_bytes = bytes_of(weight, batch.precision) / static_cast<size_t>(matrix.panels);
  team.share_by_node(matrix.panels, shared_panels(panel_bytes), panels_of(team, matrix.panels),
                     [&](int64_t first, int64_t last) {
                       for (int64_t to; first < last; first = to) {
                         const int64_t head = first / panels;
                         to = std::min(last, (head + 1) * panels);
                         const PreparedRows rows{x.data + static_cast<size_t>(head) * x.stride,
                                                 x.stride * static_cast<size_t>(heads), batch.rows};
                         for_parts(first, to, batch.rows, [&](int64_t begin, int64_t end) {
                           const int64_t stride = (end - begin) * kPanel;
                           product(matrix, begin, end, rows, out, stride);
                           take(head, begin % panels * kPanel, stride, out, stride);
                         });
                         team.tally(matrix.panels, first, to, panel_bytes);
                       }
                     });
}

class LatentAttentionBlock : public Block {
 public:
  LatentAttentionBlock(const LayerWeights& layer, const AttentionPlace& place,
                       const BlockSetting& setting)
      : attention_(layer, place, setting.traits, setting.ropes),
        query_key_value_(layer.query_key_value),
        output_(layer.output),
        output_bias_(layer.output_bias),
        weights_(*layer.latent) {
    const AttentionShape& shape = attention_.shape();
    const int64_t rows = setting.max_rows;
    heads_ = scratch_.add<float>(rows * shape.outputs());
    by_head_ =
        scratch_.add<float>(rows * std::max(shape.heads * query_width(), weights_.values->rows()));
    if (has_query_latent())
      query_latents_ = scratch_.add<float>(rows * std::ssize(weights_.query_norm.weight));
  }

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override {
    project(team, batch, inputs);
    attention_.run(team, batch, heads_.in(batch.scratch), nullptr);
    expand(team, batch);
    apply(team, batch, "output", *output_,
          rows_at(by_head_.in(batch.scratch), weights_.values->rows()),
          put_output(batch, output_bias_, to));
  }

  std::vector<BlockMatrix> matrices() const override {
    const int64_t heads = attention_.shape().heads;
    std::vector<BlockMatrix> all{
        {query_key_value_.get(), "query_key_value"},
        {output_.get(), "output"},
        {weights_.keys.get(), "latent_keys", heads},
        {weights_.values.get(), "latent_values", heads},
    };
    if (has_query_latent()) all.push_back({weights_.queries.get(), "latent_queries"});
    return all;
  }
  size_t scratch_bytes() const override { return scratch_.bytes(); }
  int64_t cache_words(std::span<const SequenceRows> sequences) const override {
    return attention_.cache_words(sequences);
  }

 private:
  bool has_query_latent() const { return weights_.queries != nullptr; }
  // The part of a head's query or key that rotates comes before its latent.
  int64_t rotated() const { return attention_.shape().head_dim - attention_.shape().value_dim; }
  // The width of a head's query before its key matrix is absorbed: the rotated part, then the
  // unrotated one.
  int64_t query_width() const { return rotated() + weights_.keys->columns(); }

  void project(Team& team, Batch& batch, const RowInputs& inputs) const;
  void expand(Team& team, Batch& batch) const;

  HeadAttention attention_;
  std::shared_ptr<PackedWeight> query_key_value_, output_;
  Vector output_bias_;
  LatentWeights weights_;
  ScratchLayout scratch_;
  Scratch<float> heads_;          // [rows][queries; key; value]; the outputs replace the queries
  Scratch<float> by_head_;        // [rows][heads]: queries, then outputs
  Scratch<float> query_latents_;  // [rows][rank]
};

// Computes each head's query, [rotated part; query of the latent], and the key.
void LatentAttentionBlock::project(Team& team, Batch& batch, const RowInputs& inputs) const {
  const AttentionShape& shape = attention_.shape();
  const int64_t heads = shape.heads, dim = shape.head_dim, outputs = shape.outputs();
  const int64_t queries = heads * query_width();
  float *const by_head = by_head_.in(batch.scratch), *const all = heads_.in(batch.scratch);
  float* const first_out = has_query_latent() ? query_latents_.in(batch.scratch) : by_head;
  const int64_t before = query_key_value_->rows() - dim;
  apply(team, batch, "queries, keys, values", *query_key_value_, inputs,
        keep_outputs(batch, {{0, before, first_out, before},
                             {before, before + dim, all + shape.queries(), outputs}}));
  if (has_query_latent()) {
    const auto normed_latent = [&](int64_t row, float* scratch) -> const float* {
      batch.traits.kernels.rms_norm(first_out + row * before, weights_.query_norm.weight.data(),
                                    before, kNormEpsilon, 0.0f, scratch);
      return scratch;
    };
    apply(team, batch, "queries", *weights_.queries, normed_latent,
          keep_outputs(batch, {{0, queries, by_head, queries}}));
  }
  record(team, batch, "queries", by_head, queries, queries);
  const RowInputs plain = rows_at(by_head + rotated(), query_width());
  multiply_heads(
      team, batch, "queries of latents", *weights_.keys, heads,
      prepare(team, batch, batch.precision, batch.rows * heads, *weights_.keys, plain),
      [&](int64_t head, int64_t first, int64_t count, const float* result, int64_t stride) {
        for (int64_t row = 0; row < batch.rows; ++row) {
          float* const query = all + row * outputs + head * dim;
          std::memcpy(query + rotated() + first, result + row * stride,
                      static_cast<size_t>(count) * sizeof(float));
          if (first == 0)
            std::memcpy(query, by_head + (row * heads + head) * query_width(),
                        static_cast<size_t>(rotated()) * sizeof(float));
        }
      });
}

// Computes each head's outputs from the latents that attention has summed for it.
void LatentAttentionBlock::expand(Team& team, Batch& batch) const {
  const AttentionShape& shape = attention_.shape();
  const int64_t heads = shape.heads, width = weights_.values->rows(), each = width / heads;
  const float* const summed = heads_.in(batch.scratch);
  float* const by_head = by_head_.in(batch.scratch);
  const auto latent = [&](int64_t i, float*) -> const float* {
    return summed + i / heads * shape.outputs() + i % heads * shape.head_dim;
  };
  multiply_heads(
      team, batch, "values of latents", *weights_.values, heads,
      prepare(team, batch, batch.precision, batch.rows * heads, *weights_.values, latent),
      [&](int64_t head, int64_t first, int64_t count, const float* result, int64_t stride) {
        for (int64_t row = 0; row < batch.rows; ++row)
          std::memcpy(by_head + row * width + head * each + first, result + row * stride,
                      static_cast<size_t>(count) * sizeof(float));
      });
}

}  // namespace

std::unique_ptr<Block> make_latent_attention(const LayerWeights& layer, const AttentionPlace& place,
                                             const BlockSetting& setting) {
  return std::make_unique<LatentAttentionBlock>(layer, place, setting);
}

}  // namespace specqd
