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
  team.stage(kRecurrence);
  team.share(std::ssize(sequences_) * heads, 1, [&](int64_t item, int64_t) {
    run_delta_head(team, layer_index, sequences_[static_cast<size_t>(item / heads)], item % heads);
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
void Decoder::run_delta_head(Team& team, int64_t layer_index, const SequenceRows& rows,
                             int64_t key_head) {
  const StateShape& shape = spec_.delta;
  const size_t index = static_cast<size_t>(&rows - sequences_.data());
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t group = shape.value_heads / shape.key_heads;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  for (size_t i = state_step_starts_[index]; i < state_step_starts_[index + 1]; ++i) {
    const StateStep& step = state_steps_[i];
    for (int64_t position = step.first; position < step.last; position += kDeltaRows)
      run_delta_rows(layer_index, rows, step, key_head, position,
                     std::min<int64_t>(kDeltaRows, step.last - position));
    if (step.to == nullptr) continue;
    team.stage("next states");
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
      kernels_.delta_advance(delta_chunk(states, layer, step, head), step.to->state(layer, head));
    keep_inputs(states, layer, step, key_head);
    team.stage(kRecurrence);
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

// Runs the rows at [position, position + count) of a chunk through one key head.
void Decoder::run_delta_rows(int64_t layer_index, const SequenceRows& rows, const StateStep& step,
                             int64_t key_head, int64_t position, int64_t count) {
  const DeltaWeights& weights = *weights_.layers[static_cast<size_t>(layer_index)].delta;
  const StateShape& shape = spec_.delta;
  const SequenceStates& states = cache_->states().of(rows.sequence);
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const int64_t first_row = rows.first_row + position - rows.start, width = delta_width();
  const int64_t keys = shape.key_heads * shape.key_dim, at = position - step.anchor;
  const int64_t group = shape.value_heads / shape.key_heads, dim = shape.key_dim;
  float* const in = delta_inputs_.data() + first_row * width;

  HeadRows head;
  for (int64_t n = 0; n < count; ++n) {
    const auto convolve = [&](int64_t first, float* out) {
      convolve_delta(weights, states, layer, position + n, in + n * width, first, dim, out);
    };
    float *const key = head.inputs + 2 * n * dim, *const query = key + dim;
    convolve(key_head * dim, query);
    convolve(keys + key_head * dim, key);
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
      convolve_delta(weights, states, layer, position + n, in + n * width, 2 * keys + values,
                     shape.value_dim, head.values + n * shape.value_dim);
      const float* const rates = delta_rates_.data() + (first_row + n) * 2 * shape.value_heads;
      head.betas[n] = sigmoid(rates[value_head]);
      const auto h = static_cast<size_t>(value_head);
      states.decays(layer, position, value_head)[at + n] =
          decay_of(weights.log_rate[h], static_cast<double>(rates[shape.value_heads + value_head]) +
                                            static_cast<double>(weights.step_bias[h]));
    }
    kernels_.delta_rows(delta_chunk(states, layer, step, value_head),
                        {at, count, head.inputs, head.values, head.betas, head.out});
    for (int64_t n = 0; n < count; ++n)
      gate_head(weights, head.out + n * shape.value_dim,
                in + n * width + shape.channels() + values);
  }
}

// Keeps `count` channels of a row's inputs of the convolution, and convolves them.
void Decoder::convolve_delta(const DeltaWeights& weights, const SequenceStates& states,
                             int64_t layer, int64_t position, const float* in, int64_t first,
                             int64_t count, float* out) const {
  static constexpr uint16_t kBeforeText[kLargestDeltaDim] = {};
  const StateShape& shape = spec_.delta;
  const uint16_t* taps[kMostTaps];
  kernels_.round_bf16_finite(in + first, count, states.inputs(layer, position) + first);
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    const int64_t from = position + tap - (shape.taps - 1);
    taps[tap] = from < 0 ? kBeforeText : states.inputs(layer, from) + first;
  }
  kernels_.short_conv(taps, weights.convolution.data() + first, shape.channels(), shape.taps, count,
                      out);
}

// out = rms(x) * weight * silu(out), with a weight in fp32.
void Decoder::gate_head(const DeltaWeights& weights, float* x, float* out) const {
  static constexpr uint16_t kZeros[kLargestDeltaDim] = {};
  const int64_t dim = spec_.delta.value_dim;
  kernels_.rms_norm(x, kZeros, dim, spec_.norm_epsilon, 1.0f, x);
  for (int64_t i = 0; i < dim; ++i) x[i] *= weights.norm[static_cast<size_t>(i)];
  kernels_.silu_times(out, x, dim, out);
}

}  // namespace specqd
