// Recurrent layers, whose states lie beside the cache (recurrent_states.h): a short convolution,
// and a delta rule behind it (decoder_delta.cpp) or gates around it. docs/exactness.md gives the
// order of the sums.
#include <algorithm>
#include <cstring>

#include "model/decoder.h"
#include "model/decoder_stages.h"

namespace specqd {
namespace {

constexpr int64_t kMostTaps = 8;
constexpr int64_t kPartChannels = 128;  // that one thread convolves at once, where there is no rule

}  // namespace

StateShape Decoder::state_shape() const {
  StateShape shape = spec_.states;
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
      // A delta rule reads the rows since the anchor, a convolution alone those right before.
      const int64_t before = state > 0 ? step.first - step.anchor : states.shape().earlier_rows();
      state_bytes_ += (step.from != nullptr ? state : 0) + (step.to != nullptr ? state : 0) +
                      row * (std::min(before, step.first) + step.last - step.first);
    }
    state_step_starts_.push_back(state_steps_.size());
  }
}

std::span<const StateStep> Decoder::steps_of(const SequenceRows& rows) const {
  const size_t index = static_cast<size_t>(&rows - sequences_.data());
  return std::span(state_steps_)
      .subspan(state_step_starts_[index],
               state_step_starts_[index + 1] - state_step_starts_[index]);
}

void Decoder::mix_recurrent(Team& team, int64_t layer_index) {
  static const Vector kNoBias;
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
  const StateShape& shape = spec_.states;
  const PackedWeight& in = *layer.query_key_value;
  const int64_t width = in.rows(), channels = shape.channels;
  const auto inputs = normed(layer.attention_norm);
  const auto keep = [&](std::vector<float>& to, int64_t outputs, const Vector& bias) {
    return [&to, outputs, &bias, this](int64_t first, int64_t count, const float* result,
                                       int64_t stride) {
      const int64_t kept = std::min(count, outputs - first);
      for (int64_t row = 0; row < rows_; ++row) {
        float* const out = to.data() + row * outputs + first;
        std::memcpy(out, result + row * stride, static_cast<size_t>(kept) * sizeof(float));
        if (!bias.empty()) kernels_.add_bf16(out, bias.data() + first, kept);
      }
    };
  };
  apply(team, "inputs of the recurrence", in, inputs,
        keep(recurrent_inputs_, width, layer.query_key_value_bias));
  if (layer.delta != nullptr) {
    // Drafts read these exactly, because they are small and errors in them add up over a text.
    const PackedWeight& rate = *layer.delta->rates;
    multiply(team, "decays and betas", Precision::kExact, rate,
             prepare(team, Precision::kExact, rows_, rate, inputs),
             keep(delta_rates_, 2 * shape.value_heads, kNoBias));
  }
  const int64_t parts =
      layer.delta != nullptr ? shape.key_heads : (channels + kPartChannels - 1) / kPartChannels;
  team.stage("recurrence");
  team.share(std::ssize(sequences_) * parts, 1, [&](int64_t item, int64_t) {
    const SequenceRows& rows = sequences_[static_cast<size_t>(item / parts)];
    if (layer.delta != nullptr)
      run_delta_head(team, layer_index, rows, item % parts);
    else
      run_convolution(layer_index, rows, item % parts * kPartChannels);
  });
  apply(team, "output", *layer.output, rows_at(recurrent_inputs_.data() + channels, width),
        put_output(layer.output_bias, Destination::kResidual));
}

// Keeps the convolution's inputs of a position and computes its outputs, both for channels
// [first, first + count). `out` may be `in`.
void Decoder::convolve(int64_t layer_index, const SequenceStates& states, int64_t position,
                       int64_t first, int64_t count, const float* in, float* out) const {
  static constexpr uint16_t kBeforeText[kLargestDeltaDim] = {};
  static_assert(kPartChannels <= kLargestDeltaDim);
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer_index)];
  const StateShape& shape = spec_.states;
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  const uint16_t* taps[kMostTaps];
  kernels_.round_bf16_finite(in, count, states.inputs(layer, position) + first);
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    const int64_t from = position + tap - (shape.taps - 1);
    taps[tap] = from < 0 ? kBeforeText : states.inputs(layer, from) + first;
  }
  kernels_.short_conv({taps, weights.convolution.data() + first, shape.channels, shape.taps,
                       weights.delta != nullptr},
                      count, out);
  if (!weights.convolution_bias.empty())
    kernels_.add_bf16(out, weights.convolution_bias.data() + first, count);
}

// Copies the convolution's inputs that rows after the next anchor read.
void Decoder::keep_inputs(int64_t layer_index, const SequenceStates& states, const StateStep& step,
                          int64_t first, int64_t count) const {
  const int64_t layer = cached_[static_cast<size_t>(layer_index)];
  for (int64_t back = 1; back <= spec_.states.earlier_rows(); ++back)
    std::copy_n(states.inputs(layer, step.anchor + kDeltaChunk - back) + first, count,
                step.to->inputs(layer, back) + first);
}

// Runs all rows of a sequence through a part of the channels, from `first`. A row of the inputs is
// [input gates, output gates, values]; outputs replace the output gates.
void Decoder::run_convolution(int64_t layer_index, const SequenceRows& rows, int64_t first) {
  const int64_t channels = spec_.states.channels;
  const int64_t count = std::min(kPartChannels, channels - first);
  const SequenceStates& states = cache_->states().of(rows.sequence);
  float mixed[kPartChannels];
  for (const StateStep& step : steps_of(rows)) {
    for (int64_t position = step.first; position < step.last; ++position) {
      const int64_t row = rows.first_row + position - rows.start;
      const float* const gates = recurrent_inputs_.data() + row * 3 * channels + first;
      for (int64_t i = 0; i < count; ++i) mixed[i] = gates[i] * gates[2 * channels + i];
      convolve(layer_index, states, position, first, count, mixed, mixed);
      float* const out = recurrent_inputs_.data() + row * 3 * channels + channels + first;
      for (int64_t i = 0; i < count; ++i) out[i] *= mixed[i];
    }
    if (step.to != nullptr) keep_inputs(layer_index, states, step, first, count);
  }
}

}  // namespace specqd
