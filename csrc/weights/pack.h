// Packs a BF16 matrix into planes that hold both precisions (docs/kernels.md draws them).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace specqd {

// Rows of K BF16 weights, without alignment.
struct RowSource {
  const uint8_t* data = nullptr;
  int64_t rows = 0;
};

// With a scale in this range, every nonzero value of a block is a normal BF16 number.
constexpr uint8_t kLeastMxfp4Scale = 2, kLargestMxfp4Scale = 252;

// Rows of MXFP4: blocks of 32 weights as 16 bytes of two E2M1 codes, the lower nibble first, and
// one E8M0 scale per block.
struct Mxfp4Source {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  int64_t rows = 0;
};

// The meaning of scale bytes for a matrix whose largest magnitude has these BF16 bits.
ScaleCode scale_code_for(DraftFormat format, uint16_t largest);

struct PackError {
  int64_t source = -1;  // index of the source with a weight that is not finite; -1: none
  int64_t row = 0;
  int64_t column = 0;
};

// Panels of a new matrix are first touched by threads of the node that shall have them.
//
// One packed matrix. Its outputs are the rows of all sources in order (stacked), or, for two
// sources, alternating panels of 16 rows (interleaved), so that a gate and its up projection are
// computed side by side.
class PackedWeight {
 public:
  struct Options {
    bool interleaved = false;
    DraftFormat format = DraftFormat::kFp4;
    std::span<const float> importance;  // [columns], > 0, or empty: all inputs count the same
    std::span<const float> products;    // of inputs, as feedback_factors() takes; or empty
  };

  // Fills `error` and returns null if a weight is not finite.
  static std::shared_ptr<PackedWeight> pack(Pool& pool, const Kernels& kernels,
                                            std::span<const RowSource> sources, int64_t columns,
                                            Options options, PackError* error);

  // Packs weights that are stored as MXFP4: one source, or two interleaved ones with equally many
  // rows. A scale out of BF16's range is an error at its block (`column`).
  static std::shared_ptr<PackedWeight> take_mxfp4(Pool& pool, std::span<const Mxfp4Source> sources,
                                                  int64_t blocks, PackError* error);

  // Views of a weight's planes. All weights have codes, scales and their code (shift, base). A
  // nested weight has all others but `plain`, a plain one has `plain`, an MXFP4 one no more.
  struct Planes {
    std::span<const uint8_t> codes, scales;
    std::span<const uint32_t> scale_code;
    std::span<const uint8_t> residuals = {};
    std::span<const uint32_t> patch_starts = {};
    std::span<const uint16_t> patches = {}, plain = {};
  };
  Planes planes(int node = 0) const;  // of a node's copy, if nodes have copies

  // A weight over planes that were packed before, such as those of a mapped file; `owner` keeps
  // them alive. `source_rows` are the sources' rows as for pack(). The planes are not trusted: if
  // they do not fit, or would cause access out of bounds, the result is null and `problem` says
  // why.
  static std::shared_ptr<PackedWeight> map(Pool& pool, const Planes& planes,
                                           std::span<const int64_t> source_rows, int64_t columns,
                                           bool interleaved, std::shared_ptr<const void> owner,
                                           std::string* problem);

  const PackedMatrix& matrix() const { return matrix_; }
  // The same for the threads of a node, which may have a copy of its own.
  const PackedMatrix& matrix(int node) const {
    return replicas_.empty() ? matrix_ : replicas_[static_cast<size_t>(node)].matrix;
  }
  size_t copies() const { return std::max<size_t>(replicas_.size(), 1); }
  int64_t columns() const { return columns_; }
  int64_t rows() const { return static_cast<int64_t>(packed_row_.size()); }
  bool is_nested() const { return matrix_.residuals != nullptr; }
  // Whether the weights were stored as MXFP4, so that both precisions read the same weights.
  bool is_mxfp4() const { return matrix_.plain == nullptr && matrix_.residuals == nullptr; }

  // BF16 bits of a row of the stacked sources, [columns].
  void read_row(const Kernels& kernels, int64_t row, uint16_t* out) const;

  // Bytes by plane.
  struct Bytes {
    size_t codes, scales, residuals, patches, plain;
    size_t draft() const { return codes + scales; }  // that the fp4 precision reads
    // Bytes that the exact precision reads: plain tiles alone, or every plane of nested ones.
    size_t exact() const { return plain > 0 ? plain : codes + scales + residuals + patches; }
    size_t stored() const { return codes + scales + residuals + patches + plain; }
  };
  Bytes bytes() const;
  int64_t patch_count() const { return patch_count_; }

 private:
  struct Replica {
    PackedMatrix matrix;
    Memory planes, exact;
  };
  void replicate(Pool& pool);  // if the pool's nodes have copies
  void place(Pool& pool);      // copies the planes to the nodes
  Replica copy(Pool& pool, int node) const;

  PackedMatrix matrix_;
  int64_t columns_ = 0;
  int64_t patch_count_ = 0;
  std::vector<int64_t> packed_row_;  // by row of the stacked sources
  Memory planes_;
  Memory exact_;                       // patches, or plain tiles
  std::shared_ptr<const void> owner_;  // keeps mapped planes alive
  std::vector<Replica> replicas_;      // by node; empty: all nodes share one
};

// Finds the first weight of a row-major matrix that is not finite.
PackError find_not_finite(Pool& pool, RowSource source, int64_t columns);

}  // namespace specqd
