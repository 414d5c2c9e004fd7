// The Python class of a table of kernels, and the types that its methods take: matrices and rows of
// inputs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <string>

#include "bindings/bindings.h"
#include "kernels/kernels.h"
#include "runtime/memory.h"

namespace specqd {

template <class T, int Dimensions>
using In = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

// An array of zeros in whole large pages, so that benchmarks do not measure page tables.
template <class T>
class Pages {
 public:
  explicit Pages(size_t count = 0)
      : count_(count), memory_((count * sizeof(T) + kLargePage) / kLargePage * kLargePage) {
    std::memset(memory_.data(), 0, memory_.size());
  }
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  size_t size() const { return count_; }

 private:
  static constexpr size_t kLargePage = size_t{2} << 20;
  size_t count_;
  Memory memory_;
};

// A packed matrix that owns its planes.
struct Packed {
  Pages<uint8_t> codes, scales, residuals;
  Pages<uint32_t> patch_starts;
  Pages<uint16_t> patches, plain;
  PackedMatrix view;

  int64_t weights() const { return view.panels * view.tiles * kTileWeights; }
  size_t bytes(bool exact) const {
    if (!exact) return codes.size() + scales.size();
    if (view.plain != nullptr) return plain.size() * 2;
    return codes.size() + scales.size() + residuals.size() + 4 * patch_starts.size() +
           2 * patches.size();
  }
};

template <>
inline const std::vector<std::string> kNamesOf<Precision>{"exact", "fp4"};
template <>
inline const std::vector<std::string> kNamesOf<DraftFormat>{"mxfp4-floor", "mxfp4", "fp4"};

struct Prepared {
  size_t stride;
  int64_t rows;
  Pages<uint8_t> data;
  PreparedRows view() const { return {data.data(), stride, rows}; }
};

// Prepares rows of inputs, x [rows, inputs], for matrices with `tiles` tiles per panel.
Prepared prepare(const Kernels& kernels, Precision precision, In<float, 2> x, int64_t tiles);

// The Python class of a table of kernels.
struct KernelTable {
  const Kernels* at;
};

}  // namespace specqd
