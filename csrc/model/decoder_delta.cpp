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
constexpr const char* kRecurrence = "recurrence";

// 1 / |x| of two vectors, in double. Sums of several vectors run side by side in the processor.
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

// The parts of some rows that one thread computes: queries and keys, then a value head at a time.
struct HeadRows {
  static constexpr int64_t kWords = kDeltaRows * kLargestDeltaDim;
  float inputs[2 * kWords], values[kWords], out[kWords];
  float betas[kDeltaRows];
};

}  // namespace

// Runs all rows of a sequence through one key head and its value heads, in order.
void Decoder::run_delta_head(Team& team, int64_t layer_index, const SequenceRows& rows,
                             int64_t key_head) {
  const StateShape& shape = spec_.states;
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t group = shape.value_heads / shape.key_heads;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  for (const StateStep& step : steps_of(rows)) {
    for (int64_t position = step.first; position < step.last; position += kDeltaRows)
      run_delta_rows(layer_index, rows, step, key_head, position,
                     std::min<int64_t>(kDeltaRows, step.last - position));
    if (step.to == nullptr) continue;
    team.stage("next states");
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
      kernels_.delta_advance(delta_chunk(states, layer, step, head), step.to->state(layer, head));
    const int64_t dim = shape.key_dim, keys = shape.key_heads * dim;
    const int64_t values = group * shape.value_dim;
    keep_inputs(layer_index, states, step, key_head * dim, dim);
    keep_inputs(layer_index, states, step, keys + key_head * dim, dim);
    keep_inputs(layer_index, states, step, 2 * keys + key_head * values, values);
    team.stage(kRecurrence);
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

// Runs the rows at [position, position + count) of a chunk through one key head.
void Decoder::run_delta_rows(int64_t layer_index, const SequenceRows& rows, const StateStep& step,
                             int64_t key_head, int64_t position, int64_t count) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer_index)];
  const DeltaWeights& rule = *weights.delta;
  const StateShape& shape = spec_.states;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t first_row = rows.first_row + position - rows.start;
  const int64_t width = weights.query_key_value->rows();
  const int64_t keys = shape.key_heads * shape.key_dim, at = position - step.anchor;
  const int64_t group = shape.value_heads / shape.key_heads, dim = shape.key_dim;
  float* const in = recurrent_inputs_.data() + first_row * width;

  HeadRows head;
  for (int64_t n = 0; n < count; ++n) {
    const auto convolved = [&](int64_t first, float* out) {
      convolve(layer_index, states, position + n, first, dim, in + n * width + first, out);
    };
    float *const key = head.inputs + 2 * n * dim, *const query = key + dim;
    convolved(key_head * dim, query);
    convolved(keys + key_head * dim, key);
    const auto [of_key, of_query] = inverse_norms(key, query, dim);
    const double root = __builtin_sqrt(static_cast<double>(dim));
    kernels_.scale(query, static_cast<float>(of_query / root), dim);
    kernels_.scale(key, static_cast<float>(of_key), dim);
    float* const kept = states.keys(layer, position, key_head) + at + n;
    for (int64_t i = 0; i < dim; ++i) kept[i * kDeltaChunk] = key[i];
  }
  for (int64_t value_head = key_head * group; value_head < (key_head + 1) * group; ++value_head) {
    const int64_t values = value_head * shape.value_dim;
    for (int64_t n = 0; n < count; ++n) {
      convolve(layer_index, states, position + n, 2 * keys + values, shape.value_dim,
               in + n * width + 2 * keys + values, head.values + n * shape.value_dim);
      const float* const rates = delta_rates_.data() + (first_row + n) * 2 * shape.value_heads;
      head.betas[n] = sigmoid(rates[value_head]);
      const auto h = static_cast<size_t>(value_head);
      states.decays(layer, position, value_head)[at + n] =
          decay_of(rule.log_rate[h], static_cast<double>(rates[shape.value_heads + value_head]) +
                                         static_cast<double>(rule.step_bias[h]));
    }
    kernels_.delta_rows(delta_chunk(states, layer, step, value_head),
                        {at, count, head.inputs, head.values, head.betas, head.out});
    for (int64_t n = 0; n < count; ++n)
      gate_head(rule, head.out + n * shape.value_dim, in + n * width + shape.channels + values);
  }
}

// out = rms(x) * weight * silu(out), with a weight in fp32.
void Decoder::gate_head(const DeltaWeights& weights, float* x, float* out) const {
  static constexpr uint16_t kZeros[kLargestDeltaDim] = {};
  const int64_t dim = spec_.states.value_dim;
  kernels_.rms_norm(x, kZeros, dim, spec_.norm_epsilon, 1.0f, x);
  for (int64_t i = 0; i < dim; ++i) x[i] *= weights.norm[static_cast<size_t>(i)];
  kernels_.silu_times(out, x, dim, out);
}

}  // namespace specqd
