// Gated DeltaNet layers: the gated delta rule behind a short convolution (decoder_recurrent.cpp).
// docs/exactness.md gives the order of the sums.
#include <algorithm>
#include <cstring>

#include "kernels/scalar_math.h"
#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr double kNormEpsilon = 1e-6;  // of queries and keys; fixed in every model
constexpr double kLinearFrom = 20.0;   // where softplus(x) = x
constexpr double kLargestLogRate = 80.0, kLargestInput = 600.0;

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

// Runs all rows of a sequence through one key head and its value heads, in order.
void Decoder::run_delta_head(int64_t layer_index, const SequenceRows& rows, int64_t key_head) {
  const StateShape& shape = spec_.states;
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t group = shape.value_heads / shape.key_heads;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  for (const StateStep& step : steps_of(rows)) {
    for (int64_t position = step.first; position < step.last; ++position)
      run_delta_row(layer_index, rows, step, key_head, position);
    if (step.to == nullptr) continue;
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
      kernels_.delta_advance(delta_chunk(states, layer, step, head), step.to->state(layer, head));
    const int64_t dim = shape.key_dim, keys = shape.key_heads * dim,
                  values = group * shape.value_dim;
    keep_inputs(layer_index, states, step, key_head * dim, dim);
    keep_inputs(layer_index, states, step, keys + key_head * dim, dim);
    keep_inputs(layer_index, states, step, 2 * keys + key_head * values, values);
  }
}

DeltaChunk Decoder::delta_chunk(const SequenceStates& states, int64_t layer, const StateStep& step,
                                int64_t value_head) const {
  const StateShape& shape = spec_.states;
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
  const StateShape& shape = spec_.states;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t row = rows.first_row + position - rows.start;
  const int64_t group = shape.value_heads / shape.key_heads, at = position - step.anchor;
  float* const in = recurrent_inputs_.data() + row * weights.query_key_value->rows();
  const auto convolved = [&](int64_t first, int64_t count, float* out) {
    convolve(layer_index, states, position, first, count, in + first, out);
  };

  HeadRow head;
  const int64_t dim = shape.key_dim, keys = shape.key_heads * dim;
  convolved(key_head * dim, dim, head.query);
  convolved(keys + key_head * dim, dim, head.key);
  const double query_scale =
      inverse_norm(head.query, dim) / __builtin_sqrt(static_cast<double>(dim));
  kernels_.scale(head.query, static_cast<float>(query_scale), dim);
  kernels_.scale(head.key, static_cast<float>(inverse_norm(head.key, dim)), dim);
  float* const kept_keys = states.keys(layer, position, key_head) + at;
  for (int64_t i = 0; i < dim; ++i) kept_keys[i * kDeltaChunk] = head.key[i];

  const float* const rates = delta_rates_.data() + row * 2 * shape.value_heads;
  for (int64_t value_head = key_head * group; value_head < (key_head + 1) * group; ++value_head) {
    const auto h = static_cast<size_t>(value_head);
    convolved(2 * keys + value_head * shape.value_dim, shape.value_dim, head.value);
    const double step_size = static_cast<double>(rates[shape.value_heads + value_head]) +
                             static_cast<double>(weights.delta->step_bias[h]);
    states.decays(layer, position, value_head)[at] =
        decay_of(weights.delta->log_rate[h], step_size);
    kernels_.delta_row(
        delta_chunk(states, layer, step, value_head),
        {at, head.key, head.query, head.value, sigmoid(rates[value_head]), head.out});
    gate_head(weights, head.out, in + shape.channels + value_head * shape.value_dim);
  }
}

// out = rms(x) * weight * silu(out), with a weight in fp32.
void Decoder::gate_head(const LayerWeights& weights, float* x, float* out) const {
  static constexpr uint16_t kZeros[kLargestDeltaDim] = {};
  const int64_t dim = spec_.states.value_dim;
  kernels_.rms_norm(x, kZeros, dim, spec_.norm_epsilon, 1.0f, x);
  for (int64_t i = 0; i < dim; ++i) x[i] *= weights.delta->norm[static_cast<size_t>(i)];
  kernels_.silu_times(out, x, dim, out);
}

}  // namespace specqd
