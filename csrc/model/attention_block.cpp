// Attention: one product makes queries, keys and values, and another one the outputs.
#include <memory>

#include "model/blocks.h"
#include "model/head_attention.h"
#include "model/products.h"

namespace specqd {
namespace {

class AttentionBlock : public Block {
 public:
  AttentionBlock(const LayerWeights& layer, const AttentionPlace& place,
                 const BlockSetting& setting)
      : attention_(layer, place, setting.traits, setting.ropes),
        query_key_value_(layer.query_key_value),
        output_(layer.output),
        query_key_value_bias_(layer.query_key_value_bias),
        output_bias_(layer.output_bias),
        num_gates_(attention_.num_gates()),
        heads_(scratch_.add<float>(setting.max_rows * attention_.shape().outputs())) {
    if (num_gates_ > 0) gates_ = scratch_.add<float>(setting.max_rows * num_gates_);
  }

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override {
    const AttentionShape& shape = attention_.shape();
    const int64_t outputs = shape.outputs();
    const int64_t made = query_key_value_->rows() - num_gates_;  // layers may lack keys, values
    float* const heads = heads_.in(batch.scratch);
    if (to == Destination::kCache) {
      write_cache(team, batch, inputs, heads);
      return;
    }
    float* const gates = num_gates_ > 0 ? gates_.in(batch.scratch) : nullptr;
    apply(team, batch, "queries, keys, values", *query_key_value_, inputs,
          keep_outputs(batch,
                       {{0, made, heads, outputs, &query_key_value_bias_},
                        {made, made + num_gates_, gates, num_gates_, &query_key_value_bias_}}));
    record(team, batch, "queries, keys, values", heads, made, outputs);
    attention_.run(team, batch, heads, gates);
    apply(team, batch, "output", *output_, rows_at(heads, outputs),
          put_output(batch, output_bias_, to));
  }

  std::vector<BlockMatrix> matrices() const override {
    return {{query_key_value_.get(), "query_key_value"}, {output_.get(), "output"}};
  }
  size_t scratch_bytes() const override { return scratch_.bytes(); }
  int64_t cache_words(std::span<const SequenceRows> sequences) const override {
    return attention_.cache_words(sequences);
  }

 private:
  // Computes keys and values alone, from the panel on that holds the first key.
  void write_cache(Team& team, Batch& batch, const RowInputs& inputs, float* heads) const {
    const int64_t outputs = attention_.shape().outputs(), queries = attention_.shape().queries();
    const PanelRun run{queries / kPanel, (outputs + kPanel - 1) / kPanel, 0};
    const int64_t panels = query_key_value_->matrix().panels;
    multiply_runs(team, batch, "keys, values", batch.precision, *query_key_value_, {&run, 1},
                  prepare(team, batch, batch.precision, batch.rows, *query_key_value_, inputs),
                  keep_outputs(batch, {{queries, outputs, heads + queries, outputs,
                                        &query_key_value_bias_}}));
    if (team.thread() == 0)
      batch.moved_bytes += bytes_of(*query_key_value_, batch.precision) *
                           static_cast<size_t>(run.last - run.first) / static_cast<size_t>(panels);
    attention_.write_cache(team, batch, heads);
  }

  HeadAttention attention_;
  std::shared_ptr<PackedWeight> query_key_value_, output_;
  Vector query_key_value_bias_, output_bias_;
  int64_t num_gates_;  // per row
  ScratchLayout scratch_;
  Scratch<float> heads_;  // [rows][queries; keys; values]; the outputs replace the queries
  Scratch<float> gates_;  // [rows][num_gates_]
};

}  // namespace

std::unique_ptr<Block> make_attention(const LayerWeights& layer, const AttentionPlace& place,
                                      const BlockSetting& setting) {
  return std::make_unique<AttentionBlock>(layer, place, setting);
}

}  // namespace specqd
