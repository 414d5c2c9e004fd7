// Mixture of experts: a router chooses a few feed forwards for each row, and a forward reads only
// those.
#include <algorithm>
#include <cstring>
#include <limits>

#include "model/activation.h"
#include "model/blocks.h"
#include "model/products.h"
#include "model/router.h"

namespace specqd {
namespace {

class ExpertsBlock : public Block {
 public:
  ExpertsBlock(const LayerWeights& layer, const BlockSetting& setting);

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override;
  std::vector<BlockMatrix> matrices() const override;
  size_t scratch_bytes() const override {
    return std::max(scratch_.bytes(), shared_ != nullptr ? shared_->scratch_bytes() : 0);
  }

 private:
  int64_t experts() const { return std::ssize(experts_); }
  PreparedRows route(Team& team, Batch& batch, const RowInputs& inputs) const;
  void sort_choices(Batch& batch) const;
  PreparedRows gather(Team& team, Batch& batch, const PreparedRows& x) const;
  template <class Take>
  void multiply_experts(Team& team, Batch& batch, const char* stage,
                        std::shared_ptr<PackedWeight> FeedForward::* weight, const PreparedRows& x,
                        bool is_gathered, const Take& take) const;
  void sum_row(Batch& batch, int64_t row, Destination to) const;

  std::vector<FeedForward> experts_;
  std::shared_ptr<const Mixture> mixture_;
  std::unique_ptr<Block> shared_;  // the feed forward that every row passes through; null: none
  Router router_;
  int64_t per_token_;
  ScratchLayout scratch_;
  Scratch<float> hidden_;                  // [slots][width]
  Scratch<float> outputs_;                 // [slots][hidden]
  Scratch<float> scores_, choice_scores_;  // [rows][Router::padded()]
  Scratch<float> shared_gates_;            // [rows]
  Scratch<Router::Choice> choices_;        // [rows][per token], best first
  // A slot is one row of one expert. Slots are ordered by expert, then by row.
  Scratch<int32_t> slot_row_;  // [slots]
  Scratch<int32_t> starts_;    // the first slot of each expert, [experts + 1]
  Scratch<int32_t> chosen_;    // their number, then the experts that have slots
  Scratch<uint8_t> gathered_;  // a prepared row per slot
};

ExpertsBlock::ExpertsBlock(const LayerWeights& layer, const BlockSetting& setting)
    : experts_(layer.feed_forwards),
      mixture_(layer.mixture),
      shared_(mixture_->has_shared() ? make_feed_forward(mixture_->shared, "shared_", setting)
                                     : nullptr),
      router_(*mixture_, std::ssize(layer.feed_forwards), setting.traits),
      per_token_(setting.traits.spec.experts_per_token) {
  const Kernels& kernels = setting.traits.kernels;
  const int64_t rows = setting.max_rows, slots = rows * per_token_;
  const int64_t tiles = experts_.front().gate_up->matrix().tiles;
  int64_t width = 0;
  for (const FeedForward& expert : experts_) width = std::max(width, expert.down->columns());
  hidden_ = scratch_.add<float>(slots * width);
  outputs_ = scratch_.add<float>(slots * setting.traits.spec.hidden);
  scores_ = scratch_.add<float>(rows * router_.padded());
  choice_scores_ = scratch_.add<float>(rows * router_.padded());
  shared_gates_ = scratch_.add<float>(rows);
  choices_ = scratch_.add<Router::Choice>(slots);
  slot_row_ = scratch_.add<int32_t>(slots);
  starts_ = scratch_.add<int32_t>(experts() + 1);
  chosen_ = scratch_.add<int32_t>(experts() + 1);
  gathered_ =
      scratch_.add<uint8_t>(slots * static_cast<int64_t>(std::max(kernels.exact_row_bytes(tiles),
                                                                  kernels.draft_row_bytes(tiles))));
}

std::vector<BlockMatrix> ExpertsBlock::matrices() const {
  std::vector<BlockMatrix> all;
  if (shared_ != nullptr) all = shared_->matrices();
  all.push_back({.weight = mixture_->router.get(), .is_always_exact = true});
  for (const FeedForward& expert : experts_) {
    const bool is_first = &expert == &experts_.front();  // its name stands for all
    all.push_back(
        {expert.gate_up.get(), is_first ? "gate_up" : "", 1, false, per_token_, experts()});
    all.push_back(
        {expert.down.get(), is_first ? "down" : "", per_token_, false, per_token_, experts()});
  }
  return all;
}

// Scores every expert for each row, and returns the prepared rows for the experts. Drafts read the
// router exactly too: it is small, and errors in it are costly.
PreparedRows ExpertsBlock::route(Team& team, Batch& batch, const RowInputs& shared_inputs) const {
  const Kernels& kernels = batch.traits.kernels;
  const PackedWeight &router = *mixture_->router, &gate_up = *experts_.front().gate_up;
  const int64_t outputs = router.rows(), stride = router_.padded();
  float* const scores = scores_.in(batch.scratch);
  const bool is_apart = mixture_->router_norm.exists();
  const RowInputs inputs =
      mixture_->experts_norm.exists() ? normed(batch, mixture_->experts_norm) : shared_inputs;
  const RowInputs router_inputs = is_apart ? normed(batch, mixture_->router_norm) : inputs;
  const PreparedRows x = prepare(team, batch, Precision::kExact, batch.rows,
                                 is_apart ? router : gate_up, router_inputs);
  multiply(team, batch, "router", Precision::kExact, router, x,
           [&](int64_t first, int64_t count, float* result, int64_t result_stride) {
             const int64_t kept = std::min(count, outputs - first);
             for (int64_t row = 0; row < batch.rows; ++row) {
               float* const from = result + row * result_stride;
               if (!mixture_->router_bias.empty())
                 kernels.add_bf16(from, mixture_->router_bias.data() + first, kept);
               if (mixture_->score_scale != 1.0f) kernels.scale(from, mixture_->score_scale, kept);
               std::memcpy(scores + row * stride + first, from,
                           static_cast<size_t>(kept) * sizeof(float));
             }
           });
  record(team, batch, "router", scores, outputs, stride);
  if (batch.precision == Precision::kExact && !is_apart) return x;
  return prepare(team, batch, batch.precision, batch.rows, gate_up, inputs);
}

// Assigns a slot to every choice.
void ExpertsBlock::sort_choices(Batch& batch) const {
  int32_t *const starts = starts_.in(batch.scratch), *const chosen = chosen_.in(batch.scratch);
  Router::Choice* const choices = choices_.in(batch.scratch);
  const int64_t slots = batch.rows * per_token_;
  std::fill_n(starts, experts() + 1, 0);
  chosen[0] = 0;
  for (int64_t i = 0; i < slots; ++i) ++starts[choices[i].expert + 1];
  for (int64_t expert = 0; expert < experts(); ++expert) {
    if (starts[expert + 1] > 0) chosen[++chosen[0]] = static_cast<int32_t>(expert);
    starts[expert + 1] += starts[expert];
  }
  std::vector<int32_t> next(starts, starts + experts());
  for (int64_t i = 0; i < slots; ++i) {
    choices[i].slot = next[static_cast<size_t>(choices[i].expert)]++;
    slot_row_.in(batch.scratch)[choices[i].slot] = static_cast<int32_t>(i / per_token_);
  }
}

// Copies prepared rows by slot, so that an expert's rows are consecutive.
PreparedRows ExpertsBlock::gather(Team& team, Batch& batch, const PreparedRows& x) const {
  uint8_t* const gathered = gathered_.in(batch.scratch);
  const int32_t* const slot_row = slot_row_.in(batch.scratch);
  team.stage("gather");
  team.share(batch.rows * per_token_, 1, [&](int64_t slot, int64_t) {
    std::memcpy(gathered + static_cast<size_t>(slot) * x.stride,
                x.data + static_cast<size_t>(slot_row[slot]) * x.stride, x.stride);
  });
  return {gathered, x.stride, batch.rows * per_token_};
}

// Multiplies each chosen expert's rows by its weight and calls take(expert, first_output, outputs,
// result, stride). `x` holds rows by slot if `is_gathered`. Ends with a barrier.
template <class Take>
void ExpertsBlock::multiply_experts(Team& team, Batch& batch, const char* stage,
                                    std::shared_ptr<PackedWeight> FeedForward::* weight,
                                    const PreparedRows& x, bool is_gathered,
                                    const Take& take) const {
  const Kernels& kernels = batch.traits.kernels;
  const auto product =
      batch.precision == Precision::kFp4 ? kernels.draft_product : kernels.exact_product;
  float* const out = batch.scratch_of(team).products();
  const int32_t *const starts = starts_.in(batch.scratch), *const chosen =
                                                               chosen_.in(batch.scratch);
  const PackedWeight& any = *(experts_.front().*weight);
  const int64_t panels = any.matrix().panels, count = chosen[0];
  const size_t panel_bytes = bytes_of(any, batch.precision) / static_cast<size_t>(panels);
  const auto multiply_part = [&](int64_t expert, int64_t first, int64_t last) {
    const PackedWeight& each = *(experts_[static_cast<size_t>(expert)].*weight);
    const PackedMatrix& matrix = each.matrix(team.node());
    const int64_t start = starts[expert], rows = starts[expert + 1] - start;
    const size_t skipped = is_gathered ? static_cast<size_t>(start) * x.stride : 0;
    for_parts(first, last, rows, [&](int64_t begin, int64_t end) {
      const int64_t stride = (end - begin) * kPanel;
      product(matrix, begin, end, {x.data + skipped, x.stride, rows}, out, stride);
      take(expert, begin * kPanel, stride, out, stride);
    });
    if (team.nodes() > 1)
      team.tally(panels, first, last,
                 bytes_of(each, batch.precision) / static_cast<size_t>(panels));
  };
  // A node's items are its panels of the first chosen expert, then those of the next.
  const auto bound = [&](int node) { return count * team.bound(node, panels); };
  team.stage(stage);
  team.share_by_node(count * panels, shared_panels(panel_bytes), bound,
                     [&](int64_t first, int64_t last) {
                       int node = 0;
                       while (first >= bound(node + 1)) ++node;
                       const int64_t of_node = team.bound(node, panels);
                       const int64_t of_each = team.bound(node + 1, panels) - of_node;
                       first -= bound(node), last -= bound(node);
                       for (int64_t to; first < last; first = to) {
                         const int64_t place = first / of_each, expert = chosen[1 + place];
                         to = std::min(last, (place + 1) * of_each);
                         const int64_t panel = of_node + first % of_each;
                         multiply_part(expert, panel, panel + to - first);
                       }
                     });
}

void ExpertsBlock::run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const {
  const Kernels& kernels = batch.traits.kernels;
  const int64_t hidden = batch.traits.spec.hidden;
  if (shared_ != nullptr) shared_->run(team, batch, inputs, Destination::kAside);
  const PreparedRows x = route(team, batch, inputs);
  const int32_t* const starts = starts_.in(batch.scratch);
  const auto rows_of = [&](int64_t expert) { return starts[expert + 1] - starts[expert]; };
  team.stage("choice of experts");
  team.share(batch.rows, 1, [&](int64_t row, int64_t) {
    router_.choose(scores_.in(batch.scratch) + row * router_.padded(),
                   choice_scores_.in(batch.scratch) + row * router_.padded(),
                   {choices_.in(batch.scratch) + row * per_token_, static_cast<size_t>(per_token_)},
                   shared_gates_.in(batch.scratch)[row]);
  });
  team.stage("choice of experts");
  team.share(1, 1, [&](int64_t, int64_t) {
    sort_choices(batch);
    const int32_t* const chosen = chosen_.in(batch.scratch);
    for (int32_t i = 1; i <= chosen[0]; ++i)
      batch.moved_bytes += bytes_of(experts_[static_cast<size_t>(chosen[i])], batch.precision);
  });
  const bool is_gathered = batch.rows > 1;
  float* const acts = hidden_.in(batch.scratch);
  multiply_experts(
      team, batch, "gate and up", &FeedForward::gate_up, is_gathered ? gather(team, batch, x) : x,
      is_gathered,
      [&](int64_t expert, int64_t first, int64_t outputs, float* result, int64_t stride) {
        const FeedForward& weights = experts_[static_cast<size_t>(expert)];
        activate(batch.traits, weights, first, outputs, result, stride, rows_of(expert),
                 acts + starts[expert] * weights.down->columns());
      });
  const PackedWeight& down = *experts_.front().down;
  multiply_experts(
      team, batch, "down", &FeedForward::down,
      prepare(team, batch, batch.precision, batch.rows * per_token_, down,
              rows_at(acts, down.columns())),
      true, [&](int64_t expert, int64_t first, int64_t outputs, float* result, int64_t stride) {
        const Vector& bias = experts_[static_cast<size_t>(expert)].down_bias;
        const int64_t kept = std::min(outputs, hidden - first);
        for (int64_t row = 0; row < rows_of(expert); ++row) {
          float* const from = result + row * stride;
          if (!bias.empty()) kernels.add_bf16(from, bias.data() + first, kept);
          std::memcpy(outputs_.in(batch.scratch) + (starts[expert] + row) * hidden + first, from,
                      static_cast<size_t>(kept) * sizeof(float));
        }
      });
  team.stage("sum of experts");
  team.share(batch.rows, 1, [&](int64_t row, int64_t) { sum_row(batch, row, to); });
}

// Adds the outputs of a row's experts, best first, and then the shared feed forward's.
void ExpertsBlock::sum_row(Batch& batch, int64_t row, Destination to) const {
  const Kernels& kernels = batch.traits.kernels;
  const int64_t hidden = batch.traits.spec.hidden;
  const auto norm_if_any = [&](const Norm& norm, float* x) {
    if (norm.exists()) batch.traits.norm(norm, x, hidden, x);
  };
  float* sum = nullptr;
  for (int64_t place = 0; place < per_token_; ++place) {
    const Router::Choice& choice = choices_.in(batch.scratch)[row * per_token_ + place];
    float* const from = outputs_.in(batch.scratch) + choice.slot * hidden;
    kernels.scale(from, choice.weight * batch.traits.spec.residual_scale, hidden);
    if (place == 0)
      sum = from;
    else
      kernels.add(sum, from, hidden);
  }
  norm_if_any(mixture_->experts_post_norm, sum);
  float* const aside = batch.aside_of(row);
  if (shared_ != nullptr) {
    norm_if_any(mixture_->shared_post_norm, aside);
    kernels.scale(aside, shared_gates_.in(batch.scratch)[row], hidden);
    kernels.add(sum, aside, hidden);
  }
  if (to == Destination::kAside)
    std::copy_n(sum, hidden, aside);
  else
    kernels.add(batch.residual_of(row), sum, hidden);
}

}  // namespace

std::unique_ptr<Block> make_experts(const LayerWeights& layer, const BlockSetting& setting) {
  return std::make_unique<ExpertsBlock>(layer, setting);
}

}  // namespace specqd
