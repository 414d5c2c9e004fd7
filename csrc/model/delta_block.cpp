// Gated DeltaNet: a short convolution followed by the gated delta rule. docs/exactness.md gives the
// order of the sums.
#include <algorithm>
#include <cstring>

#include "kernels/scalar_math.h"
#include "model/blocks.h"
#include "model/products.h"
#include "model/short_convolution.h"

namespace specqd {
namespace {

constexpr double kNormEpsilon = 1e-6;  // of queries and keys; the same in every model
constexpr double kLinearFrom = 20.0;   // where softplus(x) = x
constexpr double kLargestLogRate = 80.0, kLargestInput = 600.0;
constexpr const char* kRecurrence = "recurrence";

// 1 / |x| of two vectors, in double. The processor can compute both sums at the same time.
struct InverseNorms {
  double first, second;
};
InverseNorms inverse_norms(const float* x, const float* y, int64_t n) {
  double of_x = 0.0, of_y = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    of_x += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    of_y += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  }
  return {1.0 / __builtin_sqrt(of_x + kNormEpsilon), 1.0 / __builtin_sqrt(of_y + kNormEpsilon)};
}

// Clamps x to [-limit, limit]; NaN becomes -limit. The functions below need finite arguments.
double bounded(double x, double limit) { return x > limit ? limit : x > -limit ? x : -limit; }

double softplus(double x) { return x > kLinearFrom ? x : scalar::log(1.0 + scalar::exp(x)); }

// e^(-e^log_rate softplus(step))
float decay_of(double log_rate, double step) {
  const double rate = scalar::exp(bounded(log_rate, kLargestLogRate));
  return static_cast<float>(scalar::exp(-rate * softplus(bounded(step, kLargestInput))));
}

float sigmoid(double x) {
  return static_cast<float>(1.0 / (1.0 + scalar::exp(-bounded(x, kLargestInput))));
}

// The parts of some rows that one thread computes: queries and keys, then one value head at a time.
struct HeadRows {
  static constexpr int64_t kWords = kDeltaRows * kLargestDeltaDim;
  float inputs[2 * kWords], values[kWords], out[kWords];
  float betas[kDeltaRows];
};

class DeltaBlock : public Block {
 public:
  DeltaBlock(const LayerWeights& layer, int64_t state_layer, const BlockSetting& setting)
      : traits_(setting.traits),
        shape_(setting.traits.spec.states),
        convolution_(layer, state_layer, setting.traits),
        layer_(state_layer),
        in_(layer.query_key_value),
        out_(layer.output),
        in_bias_(layer.query_key_value_bias),
        out_bias_(layer.output_bias),
        rule_(*layer.delta),
        inputs_(scratch_.add<float>(setting.max_rows * in_->rows())),
        rates_(scratch_.add<float>(setting.max_rows * 2 * shape_.value_heads)) {}

  void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const override {
    const int64_t width = in_->rows(), rates = 2 * shape_.value_heads;
    float* const all = inputs_.in(batch.scratch);
    apply(team, batch, "inputs of the recurrence", *in_, inputs,
          keep_outputs(batch, {{0, width, all, width, &in_bias_}}));
    record(team, batch, "inputs of the recurrence", all, width, width);
    // Drafts read these exactly, because they are small, and errors in them add up over a text.
    multiply(team, batch, "decays and betas", Precision::kExact, *rule_.rates,
             prepare(team, batch, Precision::kExact, batch.rows, *rule_.rates, inputs),
             keep_outputs(batch, {{0, rates, rates_.in(batch.scratch), rates}}));
    record(team, batch, "decays and betas", rates_.in(batch.scratch), rates, rates);
    team.stage(kRecurrence);
    team.share(std::ssize(batch.sequences) * shape_.key_heads, 1, [&](int64_t item, int64_t) {
      run_head(team, batch, static_cast<size_t>(item / shape_.key_heads), item % shape_.key_heads);
    });
    record(team, batch, kRecurrence, all + shape_.channels, shape_.value_heads * shape_.value_dim,
           width);
    apply(team, batch, "output", *out_, rows_at(all + shape_.channels, width),
          put_output(batch, out_bias_, to));
  }

  std::vector<BlockMatrix> matrices() const override {
    return {{in_.get(), "query_key_value"},
            {out_.get(), "output"},
            {.weight = rule_.rates.get(), .is_always_exact = true}};
  }
  size_t scratch_bytes() const override { return scratch_.bytes(); }

 private:
  void run_head(Team& team, Batch& batch, size_t sequence, int64_t key_head) const;
  void run_rows(Batch& batch, const SequenceRows& rows, const StateStep& step, int64_t key_head,
                int64_t position, int64_t count) const;
  DeltaChunk chunk(const SequenceStates& states, const StateStep& step, int64_t value_head) const;
  void gate_head(float* x, float* out) const;
  int64_t group() const { return shape_.value_heads / shape_.key_heads; }  // value heads per key

  const Traits& traits_;
  const StateShape& shape_;
  ShortConvolution convolution_;
  int64_t layer_;
  std::shared_ptr<PackedWeight> in_, out_;
  Vector in_bias_, out_bias_;
  DeltaWeights rule_;
  ScratchLayout scratch_;
  Scratch<float> inputs_;  // [rows][queries; keys; values; gates]; outputs replace the gates
  Scratch<float> rates_;   // [rows][betas; decays]
};

// Runs all rows of a sequence through one key head and its value heads, in order.
void DeltaBlock::run_head(Team& team, Batch& batch, size_t sequence, int64_t key_head) const {
  const SequenceRows& rows = batch.sequences[sequence];
  const SequenceStates& states = batch.cache->states().of(rows.sequence);
  for (const StateStep& step : batch.states.steps_of(sequence)) {
    for (int64_t position = step.first; position < step.last; position += kDeltaRows)
      run_rows(batch, rows, step, key_head, position,
               std::min<int64_t>(kDeltaRows, step.last - position));
    if (step.to == nullptr) continue;
    team.stage("next states");
    for (int64_t head = key_head * group(); head < (key_head + 1) * group(); ++head)
      traits_.kernels.delta_advance(chunk(states, step, head), step.to->state(layer_, head));
    const int64_t dim = shape_.key_dim, keys = shape_.key_heads * dim;
    const int64_t values = group() * shape_.value_dim;
    convolution_.keep_inputs(states, step, key_head * dim, dim);
    convolution_.keep_inputs(states, step, keys + key_head * dim, dim);
    convolution_.keep_inputs(states, step, 2 * keys + key_head * values, values);
    team.stage(kRecurrence);
  }
}

DeltaChunk DeltaBlock::chunk(const SequenceStates& states, const StateStep& step,
                             int64_t value_head) const {
  return {shape_.key_dim,
          shape_.value_dim,
          step.from == nullptr ? nullptr : step.from->state(layer_, value_head),
          states.keys(layer_, step.anchor, value_head / group()),
          states.decays(layer_, step.anchor, value_head),
          states.updates(layer_, step.anchor, value_head)};
}

// Runs the rows at [position, position + count) of a chunk through one key head.
void DeltaBlock::run_rows(Batch& batch, const SequenceRows& rows, const StateStep& step,
                          int64_t key_head, int64_t position, int64_t count) const {
  const Kernels& kernels = traits_.kernels;
  const SequenceStates& states = batch.cache->states().of(rows.sequence);
  const int64_t first_row = rows.first_row + position - rows.start, width = in_->rows();
  const int64_t dim = shape_.key_dim, keys = shape_.key_heads * dim, at = position - step.anchor;
  float* const in = inputs_.in(batch.scratch) + first_row * width;

  HeadRows head;
  for (int64_t n = 0; n < count; ++n) {
    const auto convolved = [&](int64_t first, float* out) {
      convolution_.run(states, position + n, first, dim, in + n * width + first, out);
    };
    float *const key = head.inputs + 2 * n * dim, *const query = key + dim;
    convolved(key_head * dim, query);
    convolved(keys + key_head * dim, key);
    const auto [of_key, of_query] = inverse_norms(key, query, dim);
    const double root = __builtin_sqrt(static_cast<double>(dim));
    kernels.scale(query, static_cast<float>(of_query / root), dim);
    kernels.scale(key, static_cast<float>(of_key), dim);
    float* const kept = states.keys(layer_, position, key_head) + at + n;
    for (int64_t i = 0; i < dim; ++i) kept[i * kDeltaChunk] = key[i];
  }
  for (int64_t value_head = key_head * group(); value_head < (key_head + 1) * group();
       ++value_head) {
    const int64_t values = value_head * shape_.value_dim;
    for (int64_t n = 0; n < count; ++n) {
      convolution_.run(states, position + n, 2 * keys + values, shape_.value_dim,
                       in + n * width + 2 * keys + values, head.values + n * shape_.value_dim);
      const float* const rates =
          rates_.in(batch.scratch) + (first_row + n) * 2 * shape_.value_heads;
      head.betas[n] = sigmoid(rates[value_head]);
      const auto h = static_cast<size_t>(value_head);
      states.decays(layer_, position, value_head)[at + n] =
          decay_of(rule_.log_rate[h], static_cast<double>(rates[shape_.value_heads + value_head]) +
                                          static_cast<double>(rule_.step_bias[h]));
    }
    kernels.delta_rows(chunk(states, step, value_head),
                       {at, count, head.inputs, head.values, head.betas, head.out});
    for (int64_t n = 0; n < count; ++n)
      gate_head(head.out + n * shape_.value_dim, in + n * width + shape_.channels + values);
  }
}

// out = rms(x) * weight * silu(out), with a weight in fp32.
void DeltaBlock::gate_head(float* x, float* out) const {
  static constexpr uint16_t kZeros[kLargestDeltaDim] = {};
  const int64_t dim = shape_.value_dim;
  traits_.kernels.rms_norm(x, kZeros, dim, traits_.spec.norm_epsilon, 1.0f, x);
  for (int64_t i = 0; i < dim; ++i) x[i] *= rule_.norm[static_cast<size_t>(i)];
  traits_.kernels.silu_times(out, x, dim, out);
}

}  // namespace

std::unique_ptr<Block> make_delta_rule(const LayerWeights& layer, int64_t state_layer,
                                       const BlockSetting& setting) {
  return std::make_unique<DeltaBlock>(layer, state_layer, setting);
}

}  // namespace specqd
