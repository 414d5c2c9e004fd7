// The Python class of a table of kernels, and what its methods take: matrices and rows of inputs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "bindings/bindings.h"
#include "kernels/kernels.h"
#include "model/decoder.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace specqd {

template <class T, int Dimensions>
using In = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

// Memory aligned to a large page, so that benchmarks do not measure the page tables.
template <class T>
class Pages {
 public:
  explicit Pages(size_t count = 0) : count_(count) {
    constexpr size_t kLargePage = size_t{2} << 20;
    const size_t bytes = (count * sizeof(T) + kLargePage) / kLargePage * kLargePage;
    data_.reset(static_cast<T*>(std::aligned_alloc(kLargePage, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
    std::memset(data_.get(), 0, bytes);
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> data_;
  size_t count_;
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

// Prepares the rows x [rows, inputs] for matrices of `tiles` tiles per panel.
Prepared prepare(const Kernels& kernels, Precision precision, In<float, 2> x, int64_t tiles);

// The Python class of a table of kernels.
struct KernelTable {
  const Kernels* at;
};

}  // namespace specqd
