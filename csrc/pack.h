// Packing a BF16 matrix once into planes that hold both readings (docs/kernels.md draws them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace specqd {

// Zeroed anonymous memory, 2 MB aligned and on huge pages where it is large. Untouched pages cost
// nothing. Throws std::bad_alloc.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
};

// Rows of K BF16 weights. Rows need no alignment.
struct RowSource {
  const uint8_t* data = nullptr;
  int64_t rows = 0;
};

// Rows of MXFP4: blocks of 32 weights as 16 bytes of two E2M1 codes each, the lower nibble first,
// and an E8M0 scale for each block.
struct Mxfp4Source {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  int64_t rows = 0;
};

struct PackError {
  int64_t source = -1;  // index of the source that holds a weight that is not finite; -1: none
  int64_t row = 0;
  int64_t column = 0;
};

// One packed matrix. Its outputs are the sources' rows one after the other (stacked), or, for two
// sources, alternating panels of 16 rows of each (interleaved), so that a gate and its up
// projection are computed side by side.
class PackedWeight {
 public:
  struct Options {
    bool interleaved = false;
    ScaleRule rule = ScaleRule::kMse;
  };

  // On a non-finite weight: fills `error` and returns null.
  static std::shared_ptr<PackedWeight> pack(Pool& pool, const Kernels& kernels,
                                            std::span<const RowSource> sources, int64_t columns,
                                            Options options, PackError* error);

  // A weight that is MXFP4, of one source or two interleaved ones with equal rows. A scale out of
  // the range that BF16 holds is an error at its block (`column`).
  static std::shared_ptr<PackedWeight> take_mxfp4(std::span<const Mxfp4Source> sources,
                                                  int64_t blocks, PackError* error);

  const PackedMatrix& matrix() const { return matrix_; }
  int64_t columns() const { return columns_; }
  int64_t rows() const { return static_cast<int64_t>(packed_row_.size()); }
  bool is_nested() const { return matrix_.residuals != nullptr; }
  // Whether it is MXFP4 from the start, so that both readings read the same weights.
  bool is_mxfp4() const { return matrix_.plain == nullptr && matrix_.residuals == nullptr; }

  // BF16 bits of a row of the stacked sources, [columns].
  void read_row(const Kernels& kernels, int64_t row, uint16_t* out) const;

  // Bytes by plane. A reading moves codes and scales (draft), or all planes that exist (exact).
  struct Bytes {
    size_t codes, scales, residuals, patches, plain;
    size_t draft() const { return codes + scales; }
    // Plain tiles are read alone; nested ones need every plane.
    size_t exact() const { return plain > 0 ? plain : codes + scales + residuals + patches; }
    size_t stored() const { return codes + scales + residuals + patches + plain; }
  };
  Bytes bytes() const;
  int64_t patch_count() const { return patch_count_; }

 private:
  PackedMatrix matrix_;
  int64_t columns_ = 0;
  int64_t patch_count_ = 0;
  std::vector<int64_t> packed_row_;  // of each row of the stacked sources
  Memory planes_;
  Memory exact_;  // patches, or the plain tiles
};

}  // namespace specqd
