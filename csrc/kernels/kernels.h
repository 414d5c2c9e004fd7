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
constexpr int kPatchPadding = 16;  // entries after the last patch, which kernels read and ignore
constexpr int kNoPatch = -1;

// A ScaleCode decodes scale bytes: a byte means the fp32 with the bits (byte << shift) + base. E8M0
// is {23, 0}. E5M3 has the shift 20 and a base that is chosen per matrix, a multiple of 2^20.
struct ScaleCode {
  uint32_t shift = 23, base = 0;
  // The scale of byte 0, and the step from one byte to the next, in units of E8M3 (kLeastScale).
  int first() const { return static_cast<int>(base >> 20); }
  int step() const { return 1 << (shift - 20); }
};

// A weight matrix [N, K], stored as ceil(N/16) panels of ceil(K/32) tiles; docs/kernels.md draws a
// tile. The exact precision reads `plain`; or codes, scales, residuals and patches; or, if the
// weights are MXFP4, only codes and scales. The fp4 precision reads codes and scales. Padding
// weights are finite, and the inputs that they multiply must be zero.
struct PackedMatrix {
  int64_t panels = 0;
  int64_t tiles = 0;                       // per panel
  const uint8_t* codes = nullptr;          // [panels][tiles][256] two E2M1 codes per byte
  const uint8_t* scales = nullptr;         // [panels][tiles][16]
  const uint8_t* residuals = nullptr;      // [panels][tiles][512]
  const uint32_t* patch_starts = nullptr;  // [panels * tiles + 1] into patches
  const uint16_t* patches = nullptr;       // followed by kPatchPadding entries; docs/kernels.md
  const uint16_t* plain = nullptr;         // [panels][tiles][512] BF16, if nesting would be larger
  ScaleCode scale;
};

// Inputs in the format that one precision multiplies. Each instruction set defines its own layout.
struct PreparedRows {
  const uint8_t* data = nullptr;
  size_t stride = 0;  // bytes, a multiple of 64
  int64_t count = 0;
};

// The format of the draft weights; formats/fp4.py describes them.
enum class DraftFormat : int { kMxfp4Floor = 0, kMxfp4 = 1, kFp4 = 2 };

// The range of scales in nested planes, in units of E8M3 (BF16 bits >> 4). Within it, every code
// and residual decodes to a finite BF16 number.
constexpr int kLeastScale = 4 << 3, kMostScale = 250 << 3;
// The largest scale that kFp4 tries is this far below the largest magnitude of the block.
constexpr int kLeastBelowLargest = 14;

// encode_tile() chooses the scales of a tile by these.
struct TileScales {
  DraftFormat format;
  ScaleCode code;
  const float* importance;  // [32], > 0: factors on the squared errors of the tile's inputs
};

// The output of encode_tile(). docs/kernels.md gives the positions within a tile.
struct TileOut {
  uint8_t* codes;      // [256]
  uint8_t* scales;     // [16]
  uint8_t* residuals;  // [512]
  uint16_t* patches;   // room for 512
};

// Rounding with error feedback (weights/error_feedback.h). Weights are rounded in the order of
// their inputs, and later weights of the same group make up for the error of each.
struct TileFeedback {
  const float* factors;  // [32][stride], from the tile's first input on
  int64_t stride;
  int64_t inputs;  // from the tile's first one to the end of its group, a multiple of 32
  float* pending;  // [inputs][16] corrections, which are added to the weights of these inputs
};

// One attention head of the gated delta rule: a chunk of 32 positions, and the state before them. A
// row reads the state and the earlier rows of the chunk, so its bits do not depend on which rows
// are computed together with it.
constexpr int kDeltaChunk = 32;
struct DeltaChunk {
  int64_t key_dim, value_dim;  // even; a multiple of 16
  const float* state;          // [key_dim][value_dim]; null: zeros
  const float* keys;           // [key_dim][32 positions]
  const float* decays;         // [32]
  float* updates;              // [32][value_dim]
};
// Rows [at, at + count) of a chunk. The chunk's keys and decays already include those of the rows.
constexpr int kDeltaRows = 8;
struct DeltaRows {
  int64_t at, count;    // at most kDeltaRows
  const float* inputs;  // [count][2][key_dim]: keys and queries
  const float* values;  // [count][value_dim]
  const float* betas;   // [count]
  float* out;           // [count][value_dim]
};

// A causal convolution of each channel, over `width` positions.
struct ShortConv {
  const uint16_t* const* rows;  // [width] BF16 rows of the positions, the oldest first
  const uint16_t* weights;      // [width][stride] BF16
  int64_t stride, width;
  bool has_silu;  // whether SiLU is applied to the sum
};

// The parameters of xIELU (arXiv 2411.13010): factors on the square and on the exponential, the
// slope at zero, and the largest exponent, which is just below zero.
struct Xielu {
  float positive, negative, slope, limit;
};

// A page of the KV cache has so many positions, a multiple of kBlock and a divisor of a chunk's.
constexpr int64_t kPagePositions = 64;
constexpr int64_t kPageTiles = kPagePositions / kBlock;  // of a panel of its values

// The keys or the values of positions [begin, end) in a list of pages, which are BF16 tiles: those
// of keys are matrices [positions, width], those of values [width, positions]. `begin` is in the
// first page, and both are multiples of kBlock. The width is padded to whole tiles.
struct KvPages {
  const uint16_t* const* pages = nullptr;
  int64_t begin = 0, end = 0;
  int64_t width = 0;
};

// What attention reads after the keys of a chunk: its values, then the keys of the next chunk, if
// that is known. Kernels prefetch it in their own way, and may count what they have prefetched.
struct PagesAhead {
  KvPages values, keys;
  int64_t page = 0, line = 0;  // the next page of both lists, and the next line of each half of it
};

struct Kernels {
  const char* name;

  // Matrix products.

  // Bytes of a prepared row for a matrix of `tiles` tiles per panel.
  size_t (*exact_row_bytes)(int64_t tiles);
  size_t (*draft_row_bytes)(int64_t tiles);
  // Converts fp32 inputs x[0, inputs) to one prepared row: the exact precision rounds them to BF16,
  // the fp4 precision to int8 with one scale per block. Inputs from `inputs` to 32 * tiles are
  // zero.
  void (*prepare_exact)(const float* x, int64_t inputs, int64_t tiles, uint8_t* row);
  void (*prepare_draft)(const float* x, int64_t inputs, int64_t tiles, uint8_t* row);

  // out[m * out_stride + 16 * (p - first) + n] = sum_k x[m][k] * w[16 * p + n][k] for all rows m
  // and panels first <= p < last. docs/exactness.md gives the order of each sum.
  void (*exact_product)(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride);
  void (*draft_product)(const PackedMatrix& w, int64_t first, int64_t last, const PreparedRows& x,
                        float* out, int64_t out_stride);

  // The same exact sums for attention: scores[m * stride + i] of query m and the key of position
  // begin + i, and out[m * width + d] of the weights of query m, which begin at position `begin`,
  // and element d of all values.
  void (*score_keys)(const KvPages& keys, const PreparedRows& queries, float* scores,
                     int64_t stride, PagesAhead& ahead);
  void (*sum_values)(const KvPages& values, const PreparedRows& weights, float* out,
                     PagesAhead& ahead);

  // Packing.

  // sums[i * sums_stride + j] += x[row * stride + i] * x[row * stride + j] for each row in order
  // and i <= j < count. Entries with j < i < count are unspecified. `count` is a multiple of 32.
  void (*add_products)(const float* x, int64_t rows, int64_t stride, int64_t count, float* sums,
                       int64_t sums_stride);
  // Encodes one tile of BF16 bits, given in tile order, into nested planes. Returns the number of
  // patches written, or kNoPatch if a weight of magnitude 2 or more would need a patch. If
  // `feedback` is null, each weight is rounded to the nearest value.
  int (*encode_tile)(const uint16_t* tile, const TileScales& scales, const TileFeedback* feedback,
                     const TileOut& out);
  // Decodes a tile, numbered through all panels, to BF16 bits [512] in tile order.
  void (*decode_tile)(const PackedMatrix& w, int64_t tile, uint16_t* out);

  // Elementwise operations. Sums over a row have the fixed order of sixteen lanes.

  // out = x / rms(x) * (offset + weight); `out` may be x.
  void (*rms_norm)(const float* x, const uint16_t* weight, int64_t n, float epsilon, float offset,
                   float* out);
  // out = (x - mean) / deviation * weight + bias; `bias` may be null, `out` may be x.
  void (*layer_norm)(const float* x, const uint16_t* weight, const uint16_t* bias, int64_t n,
                     float epsilon, float* out);
  void (*add)(float* x, const float* y, int64_t n);          // x += y
  void (*add_bf16)(float* x, const uint16_t* y, int64_t n);  // x += y
  // out = f(gate) * up. If `up` is null, all of these but silu_times compute f(gate).
  void (*silu_times)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_times)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_tanh_times)(const float* gate, const float* up, int64_t n, float* out);
  void (*relu_squared_times)(const float* gate, const float* up, int64_t n, float* out);
  // out = gate * sigmoid(1.702 gate) * (up + 1), where gate is at most 7 and up within [-7, 7].
  void (*clamped_swiglu)(const float* gate, const float* up, int64_t n, float* out);
  // out = positive x^2 + slope x if x > 0, else negative (e^min(x, limit) - 1 - x) + slope x.
  void (*xielu)(const float* x, int64_t n, const Xielu& curve, float* out);
  void (*soft_cap)(float* x, int64_t n, float factor, float cap);  // x = cap tanh(factor x / cap)
  // out[p] = the largest of x[16 p] to x[16 p + 15].
  void (*panel_maxima)(const float* x, int64_t panels, float* out);
  // Rotates each pair (x[i], x[i + half]) by the angle with the cosine[i] and sine[i], i < half.
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t half);
  void (*round_bf16)(const float* x, int64_t n, uint16_t* out);
  // Like round_bf16, but NaN becomes zero and infinities become the largest finite value.
  void (*round_bf16_finite)(const float* x, int64_t n, uint16_t* out);

  // Attention.

  // Takes the scores of one row for positions [0, n) of a chunk, of which [begin, end) are visible.
  // Replaces each by exp(scale * score - maximum), or by zero where it is not visible, and returns
  // the maximum of the scaled scores and the sum of the results. n is a multiple of 32. If no
  // position is visible, the maximum is -infinity and the sum 0. `page_sums` takes the sums of the
  // results by page, unless it is null; so may `ahead` be.
  struct SoftmaxPart {
    float maximum, sum;
  };
  SoftmaxPart (*softmax_part)(float* scores, int64_t n, int64_t begin, int64_t end, float scale,
                              float* page_sums, PagesAhead* ahead);
  // Merges the part of a later chunk (its values [n], maximum and sum) into the running part, as in
  // online softmax.
  void (*merge_part)(float* values, SoftmaxPart* running, const float* part_values,
                     SoftmaxPart part, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);              // x *= factor
  void (*sigmoid_gate)(const float* gate, int64_t n, float* x);  // x *= sigmoid(gate)

  // Recurrent layers; docs/exactness.md gives the order of the sums.

  // out[c] = sum_j weights[j * stride + c] * rows[j][c], j ascending, for c < n.
  void (*short_conv)(const ShortConv& conv, int64_t n, float* out);
  // Computes the outputs of the rows and their updates of the state; each row reads the updates of
  // all rows before it.
  void (*delta_rows)(const DeltaChunk& chunk, const DeltaRows& rows);
  // Writes the state after the chunk to `next`, which may be the chunk's own state.
  void (*delta_advance)(const DeltaChunk& chunk, float* next);

  const SamplingKernels* sampling;

  // Measurements.

  uint64_t (*read_bytes)(const void* data, size_t bytes);  // reads all bytes; returns a checksum
};

const Kernels* portable_kernels();
#if defined(__x86_64__)
const Kernels* avx2_kernels();
const Kernels* avx2vnni_kernels();
const Kernels* avx512_kernels();
// `has_half_vectors`: the CPU needs two cycles per 512-bit vector. It affects only the speed.
const Kernels* avx512bf16_kernels(bool has_half_vectors);
// Whether this machine's vdpbf16ps rounds like two fused multiply-adds. If it does not, do not use
// avx512bf16_kernels(). Call this function under FlushSubnormals.
bool avx512bf16_rounds_as_fused();
const Kernels* amx_kernels();
// AMX code on emulated tiles, for tests on any machine with AVX-512.
const Kernels* amx_emulated_kernels();
#elif defined(__aarch64__)
const Kernels* neon_kernels();
const Kernels* neondot_kernels();
#endif

}  // namespace specqd
