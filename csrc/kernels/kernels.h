// The functions that an instruction set must provide. Each file under isa/ exports one Kernels
// table. All tables give the same bits for the same input (docs/exactness.md), for any number of
// rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specqd {

struct SamplingKernels;  // sampling_kernels.h

constexpr int kPanel = 16;  // outputs per panel
constexpr int kBlock = 32;  // inputs per MXFP4 scale, and per step of the exact sum
constexpr int kTileWeights = kPanel * kBlock;
constexpr int kTileCodes = kTileWeights / 2;
constexpr int kPatchPadding = 16;  // kernels read, and ignore, this many behind the last patch
constexpr int kNoPatch = -1;

// The meaning of a scale byte: the fp32 with the bits (byte << shift) + base. E8M0 is {23, 0}; E5M3
// has the shift 20 and a base that is chosen for each matrix, a multiple of 2^20.
struct ScaleCode {
  uint32_t shift = 23, base = 0;
  // In E8M3, like kLeastScale: the scale of the byte 0, and the step from one byte to the next.
  int first() const { return static_cast<int>(base >> 20); }
  int step() const { return 1 << (shift - 20); }
};

// A weight matrix [N, K] as ceil(N/16) panels of ceil(K/32) tiles; docs/kernels.md draws the tile.
// The exact precision needs one of: `plain`; codes, scales, residuals and patches; or codes and
// scales alone if the weights are MXFP4. The fp4 precision needs codes and scales. Padding holds
// zeros or finite values; padded inputs must be zero.
struct PackedMatrix {
  int64_t panels = 0;
  int64_t tiles = 0;                       // per panel
  const uint8_t* codes = nullptr;          // [panels][tiles][256] two E2M1 codes per byte
  const uint8_t* scales = nullptr;         // [panels][tiles][16]
  const uint8_t* residuals = nullptr;      // [panels][tiles][512]
  const uint32_t* patch_starts = nullptr;  // [panels * tiles + 1] into patches
  const uint16_t* patches = nullptr;       // and kPatchPadding more; docs/kernels.md
  const uint16_t* plain = nullptr;         // [panels][tiles][512] BF16, if nesting would be larger
  ScaleCode scale;
};

// Prepared rows: inputs in the format that one precision multiplies. Each instruction set defines
// its own layout.
struct PreparedRows {
  const uint8_t* data = nullptr;
  size_t stride = 0;  // bytes, a multiple of 64
  int64_t count = 0;
};

// Panels of plain tiles. `next` points to equally many panels that the next call multiplies, so
// that this call can prefetch them; or null.
struct PlainPanels {
  const uint16_t* data = nullptr;
  int64_t panels = 0;
  int64_t tiles = 0;   // per panel
  int64_t stride = 0;  // weights from one panel to the next
  const uint16_t* next = nullptr;
};

// The format of the draft weights; formats/fp4.py describes them.
enum class DraftFormat : int { kMxfp4Floor = 0, kMxfp4 = 1, kFp4 = 2 };

// Scales in units of E8M3 (BF16 bits >> 4) in nested planes. Between these, the bits of no code and
// residual leave those of a finite BF16 number.
constexpr int kLeastScale = 4 << 3, kMostScale = 250 << 3;
// The largest scale that kFp4 tries lies this far below the largest magnitude of a block.
constexpr int kLeastBelowLargest = 14;

// The choice of a tile's scales.
struct TileScales {
  DraftFormat format;
  ScaleCode code;
  const float* importance;  // [32] of the tile's inputs, > 0: weights of their squared errors
};

// Output of encode_tile. docs/kernels.md gives the positions within a tile.
struct TileOut {
  uint8_t* codes;      // [256]
  uint8_t* scales;     // [16]
  uint8_t* residuals;  // [512]
  uint16_t* patches;   // room for 512
};

// Rounding with error feedback: inputs are rounded in order, and what they lack is added to later
// ones of their group (weights/error_feedback.h).
struct TileFeedback {
  const float* factors;  // [32][stride], from the tile's first input on
  int64_t stride;
  int64_t inputs;  // from the tile's first to the last of its group, a multiple of 32
  float* pending;  // [inputs][16]: what is added to the weights of these inputs
};

// One head of a gated delta rule: a chunk of 32 positions, and the state at its beginning. A row
// reads the state and the rows before it, so its bits do not depend on the rows beside it.
constexpr int kDeltaChunk = 32;
struct DeltaChunk {
  int64_t key_dim, value_dim;  // even; a multiple of 16
  const float* state;          // [key_dim][value_dim]; null: zeros
  const float* keys;           // [key_dim][32 positions]
  const float* decays;         // [32]
  float* updates;              // [32][value_dim]
};
// Rows [at, at + count) of a chunk, whose keys and decays hold their own already.
constexpr int kDeltaRows = 8;
struct DeltaRows {
  int64_t at, count;    // at most kDeltaRows
  const float* inputs;  // [count][2][key_dim]: keys and queries
  const float* values;  // [count][value_dim]
  const float* betas;   // [count]
  float* out;           // [count][value_dim]
};

// A causal convolution of each channel: the BF16 rows of positions, the oldest first, and their
// BF16 weights, [taps][stride].
struct ShortConv {
  const uint16_t* const* rows;
  const uint16_t* weights;
  int64_t stride, taps;
  bool has_silu;  // of the sum
};

struct Kernels {
  const char* name;

  // Matrix products.

  // Converts fp32 inputs x[0..inputs) to one prepared row: rounded to BF16 (exact), or to int8 with
  // one scale per block (draft). Writes the whole row, with zeros up to the padded length.
  size_t (*exact_row_bytes)(int64_t tiles);
  size_t (*draft_row_bytes)(int64_t tiles);
  void (*prepare_exact)(const float* x, int64_t inputs, int64_t tiles, uint8_t* row);
  void (*prepare_draft)(const float* x, int64_t inputs, int64_t tiles, uint8_t* row);

  // out[m * out_stride + 16 * (p - first) + n] = sum_k x[m][k] * w[16 * p + n][k] for panels
  // first <= p < last, every row m. The order of each sum: docs/exactness.md.
  void (*exact_product)(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride);
  void (*draft_product)(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride);

  // The same exact sums over plain panels, added to the values in out: panel p's are
  // out[m * out_stride + 16 * p + n]. x.data points at the prepared input of the first tile's
  // first k. Attention uses this product.
  void (*accumulate_plain)(const PlainPanels& w, const PreparedRows& x, float* out,
                           int64_t out_stride);
  // Bytes per block of 32 inputs in a prepared exact row.
  size_t exact_block_bytes;

  // Packing.

  // sums[i * sums_stride + j] += x[row * stride + i] * x[row * stride + j] for each row in order,
  // i <= j < count; others with i, j < count hold anything. count is a multiple of 32.
  void (*add_products)(const float* x, int64_t rows, int64_t stride, int64_t count, float* sums,
                       int64_t sums_stride);
  // Encodes one tile of BF16 bits in tile order into nested planes; returns the number of patches
  // written, or kNoPatch if a weight of 2 or more in magnitude would be one.
  // `feedback` may be null: each weight is rounded to the nearest value.
  int (*encode_tile)(const uint16_t* tile, const TileScales& scales, const TileFeedback* feedback,
                     const TileOut& out);
  void (*decode_tile)(const PackedMatrix& w, int64_t tile, uint16_t* out);

  // Elementwise operations, in the fixed order of sixteen lanes.

  // out = x / rms(x) * (offset + weight); `out` may be x.
  void (*rms_norm)(const float* x, const uint16_t* weight, int64_t n, float epsilon, float offset,
                   float* out);
  // out = (x - mean) / deviation * weight + bias; `bias` may be null, `out` may be x.
  void (*layer_norm)(const float* x, const uint16_t* weight, const uint16_t* bias, int64_t n,
                     float epsilon, float* out);
  void (*add)(float* x, const float* y, int64_t n);          // x += y
  void (*add_bf16)(float* x, const uint16_t* y, int64_t n);  // x += y
  // out = f(gate) * up. If `up` is null, gelu_times and gelu_tanh_times compute f(gate).
  void (*silu_times)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_times)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_tanh_times)(const float* gate, const float* up, int64_t n, float* out);
  // out = f(gate) * (up + 1), with inputs clamped to 7.
  void (*clamped_swiglu)(const float* gate, const float* up, int64_t n, float* out);
  void (*soft_cap)(float* x, int64_t n, float factor, float cap);  // x = cap tanh(factor x / cap)
  // out[p] = the largest of x[16 p] to x[16 p + 15].
  void (*panel_maxima)(const float* x, int64_t panels, float* out);
  // Rotates pairs (x[i], x[i + half]) by the angle whose cosine and sine are given, [half].
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t half);
  void (*round_bf16)(const float* x, int64_t n, uint16_t* out);
  // Like round_bf16, but NaN becomes zero and infinities become the largest finite value.
  void (*round_bf16_finite)(const float* x, int64_t n, uint16_t* out);

  // Attention.

  // Scores of one row over positions [0, n) of a chunk, of which [begin, end) are visible:
  // replaces them by exp(scale * score - maximum), zero where not visible, and returns the maximum
  // and the sum. n is a multiple of 32; an empty row gives maximum -inf and sum 0.
  struct SoftmaxPart {
    float maximum, sum;
  };
  SoftmaxPart (*softmax_part)(float* scores, int64_t n, int64_t begin, int64_t end, float scale);
  // Merges a later chunk's part (values [n], maximum and sum) into the running one.
  void (*merge_part)(float* values, SoftmaxPart* running, const float* part_values,
                     SoftmaxPart part, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);              // x *= factor
  void (*sigmoid_gate)(const float* gate, int64_t n, float* x);  // x *= sigmoid(gate)

  // Recurrent layers; docs/exactness.md gives the order of the sums.

  // out[c] = sum_j weights[j * stride + c] * rows[j][c], j ascending, for c < n.
  void (*short_conv)(const ShortConv& conv, int64_t n, float* out);
  // Computes the rows' outputs and their updates of the state, each from those of the rows before.
  void (*delta_rows)(const DeltaChunk& chunk, const DeltaRows& rows);
  // The state after the chunk; `next` may be its state.
  void (*delta_advance)(const DeltaChunk& chunk, float* next);

  const SamplingKernels* sampling;

  // Measurements.

  uint64_t (*read_bytes)(const void* data, size_t bytes);  // streams over all bytes
  // Does rounds * 8192 multiplications and additions like an exact product, all in registers: the
  // peak speed of products of many rows. rounds % 4 == 0.
  void (*multiply_registers)(int64_t rounds);
};

const Kernels* portable_kernels();
#if defined(__x86_64__)
const Kernels* avx2_kernels();
const Kernels* avx2vnni_kernels();
const Kernels* avx512_kernels();
// `has_half_vectors`: the core splits 512-bit vectors in two. It changes the speed, not the bits.
const Kernels* avx512bf16_kernels(bool has_half_vectors);
// Whether avx512bf16_kernels() may be used on this machine. Call it in the core's floating-point
// mode.
bool avx512bf16_rounds_as_fused();
const Kernels* amx_kernels();
// AMX code on emulated tiles, for tests on any machine with AVX-512.
const Kernels* amx_emulated_kernels();
#endif

}  // namespace specqd
