// The rows of a block drafter's context, which are made of the target's features.
#include <utility>

#include "kernels/bf16.h"
#include "model/blocks.h"
#include "model/products.h"

namespace specqd {
namespace {

class ContextEntryBlock : public Block {
 public:
  explicit ContextEntryBlock(std::shared_ptr<const ContextEntry> weights)
      : weights_(std::move(weights)) {}

  void run(Team& team, Batch& batch, const RowInputs&, Destination) const override {
    const int64_t hidden = batch.traits.spec.hidden, columns = weights_->fc->columns();
    const auto features = [&](int64_t row, float* scratch) {
      const uint16_t* const bits = batch.pair_inputs.values.data() + row * columns;
      for (int64_t i = 0; i < columns; ++i) scratch[i] = bf16_to_float(bits[i]);
      return scratch;
    };
    apply(team, batch, "features", *weights_->fc, features,
          keep_outputs(batch, {{0, hidden, batch.residual.data(), hidden}}));
    if (team.thread() == 0) batch.moved_bytes += bytes_of(*weights_->fc, batch.precision);
    team.stage("norm of the context");
    team.share(batch.rows, 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        float* const values = batch.residual_of(row);
        batch.traits.norm(weights_->norm, values, hidden, values);
      }
    });
  }

  std::vector<BlockMatrix> matrices() const override { return {{.weight = weights_->fc.get()}}; }
  size_t scratch_bytes() const override { return 0; }

 private:
  std::shared_ptr<const ContextEntry> weights_;
};

}  // namespace

std::unique_ptr<Block> make_context_entry(std::shared_ptr<const ContextEntry> weights) {
  return std::make_unique<ContextEntryBlock>(std::move(weights));
}

}  // namespace specqd
