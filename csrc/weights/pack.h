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

// Rows of BF16 weights, contiguous and not necessarily aligned.
struct RowSource {
  const uint8_t* data = nullptr;
  int64_t rows = 0;
};

// If a scale is in this range, every nonzero value of its block is a normal BF16 number.
constexpr uint8_t kLeastMxfp4Scale = 2, kLargestMxfp4Scale = 252;

// Rows of MXFP4. Each block of 32 weights has 16 bytes of two E2M1 codes, the lower nibble first,
// and one E8M0 scale.
struct Mxfp4Source {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  int64_t rows = 0;
};

// Returns the scale code of a matrix whose largest magnitude has the BF16 bits `largest`.
ScaleCode scale_code_for(DraftFormat format, uint16_t largest);

// Where the first weight is that cannot be packed.
struct PackError {
  int64_t source = -1;  // index of the source; -1: there is no such weight
  int64_t row = 0;
  int64_t column = 0;
};

// One packed matrix. Its outputs are the rows of all sources in order (stacked), or, for two
// sources, alternating panels of 16 rows (interleaved), so that a gate and its up projection are
// computed together.
//
// The memory of each panel is first touched by a thread of the NUMA node that the panel belongs to.
class PackedWeight {
 public:
  struct Options {
    bool interleaved = false;
    DraftFormat format = DraftFormat::kFp4;
    std::span<const float> importance;  // [columns], > 0; empty: all inputs count the same
    std::span<const float> products;    // for feedback_factors(); empty: no error feedback
  };

  // Packs BF16 rows of `columns` weights. If a weight is not finite, fills `error` and returns
  // null.
  static std::shared_ptr<PackedWeight> pack(Pool& pool, const Kernels& kernels,
                                            std::span<const RowSource> sources, int64_t columns,
                                            Options options, PackError* error);

  // Packs weights that are stored as MXFP4, with `blocks` blocks per row: one source, or two
  // sources with the same number of rows, which are interleaved. If a scale is outside the range
  // above, fills `error`, where `column` is the block, and returns null.
  static std::shared_ptr<PackedWeight> take_mxfp4(Pool& pool, std::span<const Mxfp4Source> sources,
                                                  int64_t blocks, PackError* error);

  // Views of a weight's planes. Every weight has codes, scales and scale_code (shift, base). A
  // nested weight also has all others except `plain`; a plain one also has `plain`; an MXFP4 one
  // has no others.
  struct Planes {
    std::span<const uint8_t> codes, scales;
    std::span<const uint32_t> scale_code;
    std::span<const uint8_t> residuals = {};
    std::span<const uint32_t> patch_starts = {};
    std::span<const uint16_t> patches = {}, plain = {};
  };
  Planes planes(int node = 0) const;  // those of a node's copy, if nodes have copies

  // Makes a weight of planes that were packed before, such as those of a mapped file; `owner` keeps
  // them alive. `source_rows` are the numbers of rows of the sources that were given to pack(). The
  // planes are not trusted: if they do not fit, or would cause an access out of bounds, the result
  // is null and `problem` says why.
  static std::shared_ptr<PackedWeight> map(Pool& pool, const Planes& planes,
                                           std::span<const int64_t> source_rows, int64_t columns,
                                           bool interleaved, std::shared_ptr<const void> owner,
                                           std::string* problem);

  const PackedMatrix& matrix() const { return matrix_; }
  // The matrix for the threads of a node, which may have its own copy.
  const PackedMatrix& matrix(int node) const {
    return replicas_.empty() ? matrix_ : replicas_[static_cast<size_t>(node)].matrix;
  }
  size_t copies() const { return std::max<size_t>(replicas_.size(), 1); }
  int64_t columns() const { return columns_; }
  int64_t rows() const { return static_cast<int64_t>(packed_row_.size()); }
  bool is_nested() const { return matrix_.residuals != nullptr; }
  // Whether the weights were stored as MXFP4, so that both precisions read the same weights.
  bool is_mxfp4() const { return matrix_.plain == nullptr && matrix_.residuals == nullptr; }

  // Writes the BF16 bits of a row of the stacked sources, [columns].
  void read_row(const Kernels& kernels, int64_t row, uint16_t* out) const;

  // The bytes of each plane.
  struct Bytes {
    size_t codes, scales, residuals, patches, plain;
    size_t draft() const { return codes + scales; }  // read by the fp4 precision
    // Bytes that the exact precision reads: only `plain` if there is one, else all planes.
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
  void replicate(Pool& pool);  // calls place() if each of the pool's nodes has its own copy
  void place(Pool& pool);      // copies the planes to the nodes
  Replica copy(Pool& pool, int node) const;

  PackedMatrix matrix_;
  int64_t columns_ = 0;
  int64_t patch_count_ = 0;
  std::vector<int64_t> packed_row_;  // by row of the stacked sources
  Memory planes_;
  Memory exact_;                       // patches, or plain tiles
  std::shared_ptr<const void> owner_;  // keeps mapped planes alive
  std::vector<Replica> replicas_;      // by node; empty: all nodes use the same planes
};

// Finds the first weight of a row-major matrix that is not finite.
PackError find_not_finite(Pool& pool, RowSource source, int64_t columns);

}  // namespace specqd
