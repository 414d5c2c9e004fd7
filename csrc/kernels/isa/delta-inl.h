// Recurrent layers: the short convolution, and the gated delta rule, computed from the state before
// each chunk. Lanes are outputs (channels, columns of a state, or positions of a chunk), so no sum
// crosses lanes.
#pragma once

#include "kernels/isa/activations-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

void sigmoid_gate(const float* gate, int64_t n, float* x) {
  combine(x, gate, n, x, [](F16 v, F16 g) { return sigmoid_times(v, g); });
}

void short_conv(const ShortConv& conv, int64_t n, float* out) {
  const auto activated = [&](F16 x) { return conv.has_silu ? silu_times(x, splat(1.0f)) : x; };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F16 sum{};
    for (int64_t j = 0; j < conv.width; ++j)
      sum = fma(load_bf16(conv.weights + j * conv.stride + i), load_bf16(conv.rows[j] + i), sum);
    store(out + i, activated(sum));
  }
  if (i == n) return;
  F16 sum{};
  for (int64_t j = 0; j < conv.width; ++j)
    sum = fma(load_bf16_part(conv.weights + j * conv.stride + i, n - i),
              load_bf16_part(conv.rows[j] + i, n - i), sum);
  store_part(out + i, activated(sum), n - i);
}

// Writes the decay from each row j <= last to row `last`, to[j] = decays[j + 1] ... decays[last].
// Returns the decay from the state before the chunk, decays[0] ... decays[last].
inline float decays_to(const float* decays, int64_t last, float* to) {
  float product = 1.0f;
  for (int64_t j = last; j >= 0; --j) {
    to[j] = product;
    product *= decays[j];
  }
  return product;
}

// With wide registers, the sums of two rows at once, or of more columns, fit into registers.
constexpr bool kIsWide = kRegisterBytes == 64;

// Multiplies inputs [count][dim] by a matrix [dim][width]: sums[n] is the sum over i of
// inputs[n][i] times row i. Even and odd rows are summed separately, and then the two sums are
// added.
template <int count, int vectors>
inline void sum_columns(const float* matrix, int64_t width, int64_t dim, const float* inputs,
                        F16 (&sums)[count][vectors]) {
  F16 even[count][vectors] = {}, odd[count][vectors] = {};
  for (int64_t i = 0; i < dim; i += 2, matrix += 2 * width) {
    F16 of_even[vectors], of_odd[vectors];
    for (int v = 0; v < vectors; ++v) {
      of_even[v] = load(matrix + v * kLanes);
      of_odd[v] = load(matrix + width + v * kLanes);
    }
    for (int n = 0; n < count; ++n) {
      const F16 by_even = splat(inputs[n * dim + i]), by_odd = splat(inputs[n * dim + i + 1]);
      for (int v = 0; v < vectors; ++v) {
        even[n][v] = fma(by_even, of_even[v], even[n][v]);
        odd[n][v] = fma(by_odd, of_odd[v], odd[n][v]);
      }
    }
  }
  for (int n = 0; n < count; ++n)
    for (int v = 0; v < vectors; ++v) sums[n][v] = even[n][v] + odd[n][v];
}

// The factors on the updates of earlier rows, and on the state, in the sums of one row.
struct DeltaFactors {
  float by_key[kDeltaChunk], by_query[kDeltaChunk];
  float from_state;
};

// Multiplies the keys and queries of `count` rows by the keys of the chunk's positions from `at`.
template <int count, int vectors>
inline void key_products(const DeltaChunk& chunk, int64_t at, const float* inputs,
                         DeltaFactors* factors) {
  F16 sums[2 * count][vectors];
  sum_columns(chunk.keys + at, kDeltaChunk, chunk.key_dim, inputs, sums);
  for (int n = 0; n < count; ++n)
    for (int v = 0; v < vectors; ++v) {
      store(factors[n].by_key + at + v * kLanes, sums[2 * n][v]);
      store(factors[n].by_query + at + v * kLanes, sums[2 * n + 1][v]);
    }
}

template <int count>
inline void find_factors(const DeltaChunk& chunk, int64_t row, const float* inputs,
                         DeltaFactors* factors) {
  const int64_t last = row + count - 1;
  if (kIsWide && last >= kLanes)
    key_products<count, kIsWide ? 2 : 1>(chunk, 0, inputs, factors);
  else
    for (int64_t at = 0; at <= last; at += kLanes)
      key_products<count, 1>(chunk, at, inputs, factors);
  for (int n = 0; n < count; ++n) {
    float decays[kDeltaChunk] = {};
    factors[n].from_state = decays_to(chunk.decays, row + n, decays);
    for (int64_t j = 0; j <= row + n; j += kLanes) {
      store(factors[n].by_key + j, load(factors[n].by_key + j) * load(decays + j));
      store(factors[n].by_query + j, load(factors[n].by_query + j) * load(decays + j));
    }
  }
}

// Computes columns [at, at + 16 * vectors) of the updates and outputs of rows
// [first, first + count).
template <int count, int vectors>
inline void delta_columns(const DeltaChunk& chunk, const DeltaRows& rows, int64_t first,
                          const DeltaFactors* factors, int64_t at) {
  const int64_t width = chunk.value_dim, row = rows.at + first;
  F16 sums[2 * count][vectors] = {};
  if (chunk.state != nullptr)
    sum_columns(chunk.state + at, width, chunk.key_dim, rows.inputs + 2 * first * chunk.key_dim,
                sums);
  F16 update[count][vectors], out[count][vectors];
  for (int n = 0; n < count; ++n)
    for (int v = 0; v < vectors; ++v) {
      const F16 value = load(rows.values + (first + n) * width + at + v * kLanes);
      update[n][v] = fma(splat(-factors[n].from_state), sums[2 * n][v], value);
      out[n][v] = splat(factors[n].from_state) * sums[2 * n + 1][v];
    }
  const auto add = [&](int n, int64_t j, int v, F16 earlier) {
    update[n][v] = fma(splat(-factors[n].by_key[j]), earlier, update[n][v]);
    out[n][v] = fma(splat(factors[n].by_query[j]), earlier, out[n][v]);
  };
  for (int64_t j = 0; j < row; ++j)
    for (int v = 0; v < vectors; ++v) {
      const F16 earlier = load(chunk.updates + j * width + at + v * kLanes);
      for (int n = 0; n < count; ++n) add(n, j, v, earlier);
    }
  for (int n = 0; n < count; ++n)
    for (int v = 0; v < vectors; ++v) {
      const F16 own = splat(rows.betas[first + n]) * update[n][v];
      store(chunk.updates + (row + n) * width + at + v * kLanes, own);
      out[n][v] = fma(splat(factors[n].by_query[row + n]), own, out[n][v]);
      store(rows.out + (first + n) * width + at + v * kLanes, out[n][v]);
      for (int later = n + 1; later < count; ++later) add(later, row + n, v, own);
    }
}

// Computes some columns for all rows, before the next columns: these columns of the state then stay
// in the cache.
template <int most, int vectors>
inline void delta_columns_of_rows(const DeltaChunk& chunk, const DeltaRows& rows,
                                  const DeltaFactors* factors, int64_t at) {
  int64_t row = 0;
  for (; row + most <= rows.count; row += most)
    delta_columns<most, vectors>(chunk, rows, row, factors + row, at);
  for (; row < rows.count; ++row) delta_columns<1, vectors>(chunk, rows, row, factors + row, at);
}

template <int most, int vectors>
inline void all_delta_columns(const DeltaChunk& chunk, const DeltaRows& rows,
                              const DeltaFactors* factors) {
  int64_t at = 0;
  for (; at + vectors * kLanes <= chunk.value_dim; at += vectors * kLanes)
    delta_columns_of_rows<most, vectors>(chunk, rows, factors, at);
  for (; at < chunk.value_dim; at += kLanes)
    delta_columns_of_rows<most, 1>(chunk, rows, factors, at);
}

void delta_rows(const DeltaChunk& chunk, const DeltaRows& rows) {
  constexpr int kTogether = kIsWide ? 2 : 1;
  DeltaFactors factors[kDeltaRows];
  int64_t row = 0;
  for (; row + kTogether <= rows.count; row += kTogether)
    find_factors<kTogether>(chunk, rows.at + row, rows.inputs + 2 * row * chunk.key_dim,
                            factors + row);
  for (; row < rows.count; ++row)
    find_factors<1>(chunk, rows.at + row, rows.inputs + 2 * row * chunk.key_dim, factors + row);
  if (rows.count == 1)
    all_delta_columns<1, kIsWide ? 4 : 1>(chunk, rows, factors);
  else
    all_delta_columns<kTogether, kIsWide ? 2 : 1>(chunk, rows, factors);
}

// Computes columns [at, at + 16 * vectors) of rows [i, i + rows) of the next state.
template <int rows, int vectors>
inline void advance_columns(const DeltaChunk& chunk, const float* factors, float from_state,
                            int64_t i, int64_t at, float* next) {
  const int64_t width = chunk.value_dim;
  F16 sums[rows][vectors] = {};
  if (chunk.state != nullptr)
    for (int k = 0; k < rows; ++k)
      for (int v = 0; v < vectors; ++v)
        sums[k][v] = splat(from_state) * load(chunk.state + (i + k) * width + at + v * kLanes);
  for (int64_t j = 0; j < kDeltaChunk; ++j) {
    F16 update[vectors];
    for (int v = 0; v < vectors; ++v) update[v] = load(chunk.updates + j * width + at + v * kLanes);
    for (int k = 0; k < rows; ++k)
      for (int v = 0; v < vectors; ++v)
        sums[k][v] = fma(splat(factors[k * kDeltaChunk + j]), update[v], sums[k][v]);
  }
  for (int k = 0; k < rows; ++k)
    for (int v = 0; v < vectors; ++v) store(next + (i + k) * width + at + v * kLanes, sums[k][v]);
}

template <int rows>
inline void advance_rows(const DeltaChunk& chunk, const float* decays, float from_state, int64_t i,
                         float* next) {
  constexpr int vectors = kIsWide ? 4 : 1;
  float factors[rows * kDeltaChunk];
  for (int64_t j = 0; j < rows * kDeltaChunk; j += kLanes)
    store(factors + j, load(decays + j % kDeltaChunk) * load(chunk.keys + i * kDeltaChunk + j));
  int64_t at = 0;
  for (; at + vectors * kLanes <= chunk.value_dim; at += vectors * kLanes)
    advance_columns<rows, vectors>(chunk, factors, from_state, i, at, next);
  for (; at < chunk.value_dim; at += kLanes)
    advance_columns<rows, 1>(chunk, factors, from_state, i, at, next);
}

void delta_advance(const DeltaChunk& chunk, float* next) {
  float decays[kDeltaChunk];
  const float from_state = decays_to(chunk.decays, kDeltaChunk - 1, decays);
  int64_t i = 0;
  for (; i + 4 <= chunk.key_dim; i += 4) advance_rows<4>(chunk, decays, from_state, i, next);
  for (; i < chunk.key_dim; i += 2) advance_rows<2>(chunk, decays, from_state, i, next);
}

}  // namespace
}  // namespace specqd
