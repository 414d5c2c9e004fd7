// Gated DeltaNet layers: a short convolution and a gated delta rule, whose states lie beside the
// cache (recurrent_states.h). docs/exactness.md gives the order of the sums.
#include <algorithm>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/scalar_math.h"
#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr double kNormEpsilon = 1e-6;  // of queries and keys; fixed in every model
constexpr double kLinearFrom = 20.0;   // where softplus(x) = x
constexpr double kLargestLogRate = 80.0, kLargestInput = 600.0;
constexpr int64_t kMostTaps = 8;

// 1 / |x|, in double.
double inverse_norm(const float* x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return 1.0 / __builtin_sqrt(sum + kNormEpsilon);
}

// Within [-limit, limit]; NaN becomes the lower end. The functions below need finite arguments.
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

// The part of a row that one thread computes.
struct HeadRow {
  float query[kLargestDeltaDim], key[kLargestDeltaDim], value[kLargestDeltaDim];
  float out[kLargestDeltaDim];
};

}  // namespace

int64_t Decoder::delta_width() const {
  return spec_.delta.channels() + spec_.delta.value_heads * spec_.delta.value_dim;
}

StateShape Decoder::state_shape() const {
  StateShape shape = spec_.delta;
  shape.layers = std::ranges::count_if(weights_.layers, &LayerWeights::is_recurrent);
  return shape;
}

void Decoder::plan_states(std::span<const ForwardRows> sequences) {
  state_steps_.clear();
  state_step_starts_.assign(1, 0);
  state_bytes_ = 0;
  RecurrentStates& states = cache_->states();
  if (!states.exist()) return;
  states.begin_forward();
  const int64_t state = states.shape().state_bytes(), row = states.shape().row_bytes();
  for (const ForwardRows& part : sequences) {
    states.plan(part.sequence, part.start, part.start + part.count, part.settled, state_steps_);
    for (size_t i = state_step_starts_.back(); i < state_steps_.size(); ++i) {
      const StateStep& step = state_steps_[i];
      state_bytes_ += (step.from != nullptr ? state : 0) + (step.to != nullptr ? state : 0) +
                      row * (step.last - step.anchor);
    }
    state_step_starts_.push_back(state_steps_.size());
  }
}

void Decoder::mix_recurrent(Team& team, int64_t layer_index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const StateShape& shape = spec_.delta;
  const int64_t width = delta_width(), rates = 2 * shape.value_heads;
  const auto inputs = normed(layer.attention_norm);
  const auto keep = [&](std::vector<float>& to, int64_t outputs) {
    return [&to, outputs, this](int64_t first, int64_t count, const float* result, int64_t stride) {
      const int64_t kept = std::min(count, outputs - first);
      for (int64_t row = 0; row < rows_; ++row)
        std::memcpy(to.data() + row * outputs + first, result + row * stride,
                    static_cast<size_t>(kept) * sizeof(float));
    };
  };
  const PackedWeight& in = *layer.query_key_value;
  multiply(team, "inputs of the recurrence", precision_, in,
           prepare(team, precision_, rows_, in, inputs), keep(delta_inputs_, width));
  // Drafts read these exactly, because they are small and errors in them add up over a text.
  const PackedWeight& rate = *layer.delta->rates;
  multiply(team, "decays and betas", Precision::kExact, rate,
           prepare(team, Precision::kExact, rows_, rate, inputs), keep(delta_rates_, rates));
  const int64_t heads = shape.key_heads;
  team.stage("recurrence");
  team.share(std::ssize(sequences_) * heads, 1, [&](int64_t item, int64_t) {
    run_delta_head(layer_index, sequences_[static_cast<size_t>(item / heads)], item % heads);
  });
  const int64_t channels = shape.channels();
  const auto mixed = [&](int64_t row, float*) -> const float* {
    return delta_inputs_.data() + row * width + channels;
  };
  multiply(team, "output", precision_, *layer.output,
           prepare(team, precision_, rows_, *layer.output, mixed),
           put_output(layer.output_bias, Destination::kResidual));
}

// Runs all rows of a sequence through one key head and its value heads, in order.
void Decoder::run_delta_head(int64_t layer_index, const SequenceRows& rows, int64_t key_head) {
  const StateShape& shape = spec_.delta;
  const size_t index = static_cast<size_t>(&rows - sequences_.data());
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t group = shape.value_heads / shape.key_heads;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  for (size_t i = state_step_starts_[index]; i < state_step_starts_[index + 1]; ++i) {
    const StateStep& step = state_steps_[i];
    for (int64_t position = step.first; position < step.last; ++position)
      run_delta_row(layer_index, rows, step, key_head, position);
    if (step.to == nullptr) continue;
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
      kernels_.delta_advance(delta_chunk(states, layer, step, head), step.to->state(layer, head));
    keep_inputs(states, layer, step, key_head);
  }
}

// Copies the key head's inputs of the convolution that rows after the next anchor read.
void Decoder::keep_inputs(const SequenceStates& states, int64_t layer, const StateStep& step,
                          int64_t key_head) const {
  const StateShape& shape = spec_.delta;
  const int64_t keys = shape.key_heads * shape.key_dim;
  const int64_t values = shape.value_heads / shape.key_heads * shape.value_dim;
  for (int64_t back = 1; back <= shape.earlier_rows(); ++back) {
    const uint16_t* const from = states.inputs(layer, step.anchor + kDeltaChunk - back);
    uint16_t* const to = step.to->inputs(layer, back);
    std::copy_n(from + key_head * shape.key_dim, shape.key_dim, to + key_head * shape.key_dim);
    const int64_t key = keys + key_head * shape.key_dim, value = 2 * keys + key_head * values;
    std::copy_n(from + key, shape.key_dim, to + key);
    std::copy_n(from + value, values, to + value);
  }
}

DeltaChunk Decoder::delta_chunk(const SequenceStates& states, int64_t layer, const StateStep& step,
                                int64_t value_head) const {
  const StateShape& shape = spec_.delta;
  const int64_t key_head = value_head / (shape.value_heads / shape.key_heads);
  return {shape.key_dim,
          shape.value_dim,
          step.from == nullptr ? nullptr : step.from->state(layer, value_head),
          states.keys(layer, step.anchor, key_head),
          states.decays(layer, step.anchor, value_head),
          states.updates(layer, step.anchor, value_head)};
}

void Decoder::run_delta_row(int64_t layer_index, const SequenceRows& rows, const StateStep& step,
                            int64_t key_head, int64_t position) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer_index)];
  const StateShape& shape = spec_.delta;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t row = rows.first_row + position - rows.start, channels = shape.channels();
  const int64_t group = shape.value_heads / shape.key_heads, at = position - step.anchor;
  float* const in = delta_inputs_.data() + row * delta_width();

  static constexpr uint16_t kBeforeText[kLargestDeltaDim] = {};
  const auto convolve = [&](int64_t first, int64_t count, float* out) {
    const uint16_t* taps[kMostTaps];
    kernels_.round_bf16_finite(in + first, count, states.inputs(layer, position) + first);
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      const int64_t from = position + tap - (shape.taps - 1);
      taps[tap] = from < 0 ? kBeforeText : states.inputs(layer, from) + first;
    }
    kernels_.short_conv(taps, weights.delta->convolution.data() + first, channels, shape.taps,
                        count, out);
  };

  HeadRow head;
  const int64_t dim = shape.key_dim, keys = shape.key_heads * dim;
  convolve(key_head * dim, dim, head.query);
  convolve(keys + key_head * dim, dim, head.key);
  const double query_scale =
      inverse_norm(head.query, dim) / __builtin_sqrt(static_cast<double>(dim));
  kernels_.scale(head.query, static_cast<float>(query_scale), dim);
  kernels_.scale(head.key, static_cast<float>(inverse_norm(head.key, dim)), dim);
  float* const kept_keys = states.keys(layer, position, key_head) + at;
  for (int64_t i = 0; i < dim; ++i) kept_keys[i * kDeltaChunk] = head.key[i];

  const float* const rates = delta_rates_.data() + row * 2 * shape.value_heads;
  for (int64_t value_head = key_head * group; value_head < (key_head + 1) * group; ++value_head) {
    const auto h = static_cast<size_t>(value_head);
    convolve(2 * keys + value_head * shape.value_dim, shape.value_dim, head.value);
    const double step_size = static_cast<double>(rates[shape.value_heads + value_head]) +
                             static_cast<double>(weights.delta->step_bias[h]);
    states.decays(layer, position, value_head)[at] =
        decay_of(weights.delta->log_rate[h], step_size);
    kernels_.delta_row(
        delta_chunk(states, layer, step, value_head),
        {at, head.key, head.query, head.value, sigmoid(rates[value_head]), head.out});
    gate_head(weights, head.out, in + channels + value_head * shape.value_dim);
  }
}

// out = rms(x) * weight * silu(out), with a weight in fp32.
void Decoder::gate_head(const LayerWeights& weights, float* x, float* out) const {
  static constexpr uint16_t kZeros[kLargestDeltaDim] = {};
  const int64_t dim = spec_.delta.value_dim;
  kernels_.rms_norm(x, kZeros, dim, spec_.norm_epsilon, 1.0f, x);
  for (int64_t i = 0; i < dim; ++i) x[i] *= weights.delta->norm[static_cast<size_t>(i)];
  kernels_.silu_times(out, x, dim, out);
}

}  // namespace specqd
