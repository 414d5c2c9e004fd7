// Recurrent layers: the short convolution, and the gated delta rule by anchored states. Lanes are
// outputs (channels, columns of a state, or positions of a chunk), so no sum runs across lanes.
#pragma once

#include "kernels/isa/activations-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

// Columns of a state, in vectors, whose sums fit into registers.
constexpr int kDeltaVectors = kRegisterBytes == 64 ? 4 : 1;

void sigmoid_gate(const float* gate, int64_t n, float* x) {
  combine(x, gate, n, x, [](F16 v, F16 g) { return sigmoid_times(v, g); });
}

void short_conv(const ShortConv& conv, int64_t n, float* out) {
  const auto activated = [&](F16 x) { return conv.has_silu ? silu_times(x, splat(1.0f)) : x; };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F16 sum{};
    for (int64_t tap = 0; tap < conv.taps; ++tap)
      sum =
          fma(load_bf16(conv.weights + tap * conv.stride + i), load_bf16(conv.rows[tap] + i), sum);
    store(out + i, activated(sum));
  }
  if (i == n) return;
  F16 sum{};
  for (int64_t tap = 0; tap < conv.taps; ++tap)
    sum = fma(load_bf16_part(conv.weights + tap * conv.stride + i, n - i),
              load_bf16_part(conv.rows[tap] + i, n - i), sum);
  store_part(out + i, activated(sum), n - i);
}

// The decay from each row of the chunk to row `last`, downwards from it; returns the one from the
// state.
inline float decays_to(const float* decays, int64_t last, float* to) {
  float product = 1.0f;
  for (int64_t j = last; j >= 0; --j) {
    to[j] = product;
    product *= decays[j];
  }
  return product;
}

// Products of the row's key and query with the keys of positions [at, at + 16) of the chunk.
inline void key_products(const DeltaChunk& chunk, int64_t at, const float* key, const float* query,
                         float* by_key, float* by_query) {
  F16 key_even{}, key_odd{}, query_even{}, query_odd{};
  for (int64_t i = 0; i < chunk.key_dim; i += 2) {
    const F16 even = load(chunk.keys + i * kDeltaChunk + at);
    const F16 odd = load(chunk.keys + (i + 1) * kDeltaChunk + at);
    key_even = fma(splat(key[i]), even, key_even);
    key_odd = fma(splat(key[i + 1]), odd, key_odd);
    query_even = fma(splat(query[i]), even, query_even);
    query_odd = fma(splat(query[i + 1]), odd, query_odd);
  }
  store(by_key + at, key_even + key_odd);
  store(by_query + at, query_even + query_odd);
}

// Sums of a row over the earlier rows of its chunk, and over the state.
struct DeltaSums {
  float by_key[kDeltaChunk], by_query[kDeltaChunk];  // factors of the updates
  float from_state;
};

template <int vectors>
inline void delta_columns(const DeltaChunk& chunk, const DeltaRow& row, const DeltaSums& sums,
                          int64_t at) {
  const int64_t width = chunk.value_dim;
  F16 key_even[vectors] = {}, key_odd[vectors] = {}, query_even[vectors] = {},
      query_odd[vectors] = {};
  const float* state = chunk.state == nullptr ? nullptr : chunk.state + at;
  for (int64_t i = 0; state != nullptr && i < chunk.key_dim; i += 2, state += 2 * width)
    for (int v = 0; v < vectors; ++v) {
      const F16 even = load(state + v * kLanes), odd = load(state + width + v * kLanes);
      key_even[v] = fma(splat(row.key[i]), even, key_even[v]);
      key_odd[v] = fma(splat(row.key[i + 1]), odd, key_odd[v]);
      query_even[v] = fma(splat(row.query[i]), even, query_even[v]);
      query_odd[v] = fma(splat(row.query[i + 1]), odd, query_odd[v]);
    }
  F16 update[vectors], out[vectors];
  for (int v = 0; v < vectors; ++v) {
    const F16 value = load(row.value + at + v * kLanes);
    update[v] = fma(splat(-sums.from_state), key_even[v] + key_odd[v], value);
    out[v] = splat(sums.from_state) * (query_even[v] + query_odd[v]);
  }
  for (int64_t j = 0; j < row.at; ++j)
    for (int v = 0; v < vectors; ++v) {
      const F16 earlier = load(chunk.updates + j * width + at + v * kLanes);
      update[v] = fma(splat(-sums.by_key[j]), earlier, update[v]);
      out[v] = fma(splat(sums.by_query[j]), earlier, out[v]);
    }
  for (int v = 0; v < vectors; ++v) {
    update[v] = splat(row.beta) * update[v];
    store(chunk.updates + row.at * width + at + v * kLanes, update[v]);
    store(row.out + at + v * kLanes, fma(splat(sums.by_query[row.at]), update[v], out[v]));
  }
}

void delta_row(const DeltaChunk& chunk, const DeltaRow& row) {
  DeltaSums sums;
  float decays[kDeltaChunk];
  sums.from_state = decays_to(chunk.decays, row.at, decays);
  for (int64_t at = 0; at <= row.at; at += kLanes)
    key_products(chunk, at, row.key, row.query, sums.by_key, sums.by_query);
  for (int64_t j = 0; j <= row.at; ++j) {
    sums.by_key[j] *= decays[j];
    sums.by_query[j] *= decays[j];
  }
  int64_t at = 0;
  for (; at + kDeltaVectors * kLanes <= chunk.value_dim; at += kDeltaVectors * kLanes)
    delta_columns<kDeltaVectors>(chunk, row, sums, at);
  for (; at < chunk.value_dim; at += kLanes) delta_columns<1>(chunk, row, sums, at);
}

// Two rows of the next state, [2][vectors] of their columns.
template <int vectors>
inline void advance_columns(const DeltaChunk& chunk, const float* factors, float from_state,
                            int64_t i, int64_t at, float* next) {
  const int64_t width = chunk.value_dim;
  F16 sums[2][vectors] = {};
  if (chunk.state != nullptr)
    for (int k = 0; k < 2; ++k)
      for (int v = 0; v < vectors; ++v)
        sums[k][v] = splat(from_state) * load(chunk.state + (i + k) * width + at + v * kLanes);
  for (int64_t j = 0; j < kDeltaChunk; ++j)
    for (int v = 0; v < vectors; ++v) {
      const F16 update = load(chunk.updates + j * width + at + v * kLanes);
      for (int k = 0; k < 2; ++k)
        sums[k][v] = fma(splat(factors[k * kDeltaChunk + j]), update, sums[k][v]);
    }
  for (int k = 0; k < 2; ++k)
    for (int v = 0; v < vectors; ++v) store(next + (i + k) * width + at + v * kLanes, sums[k][v]);
}

void delta_advance(const DeltaChunk& chunk, float* next) {
  float decays[kDeltaChunk], factors[2 * kDeltaChunk];
  const float from_state = decays_to(chunk.decays, kDeltaChunk - 1, decays);
  for (int64_t i = 0; i < chunk.key_dim; i += 2) {
    for (int64_t j = 0; j < 2 * kDeltaChunk; ++j)
      factors[j] = decays[j % kDeltaChunk] * chunk.keys[i * kDeltaChunk + j];
    int64_t at = 0;
    for (; at + kDeltaVectors * kLanes <= chunk.value_dim; at += kDeltaVectors * kLanes)
      advance_columns<kDeltaVectors>(chunk, factors, from_state, i, at, next);
    for (; at < chunk.value_dim; at += kLanes)
      advance_columns<1>(chunk, factors, from_state, i, at, next);
  }
}

}  // namespace
}  // namespace specqd
