// Types and conversions that several bindings share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/layer_weights.h"
#include "runtime/cpu.h"
#include "weights/pack.h"

namespace specqd {

namespace nb = nanobind;

using Bits = nb::ndarray<const uint16_t, nb::numpy, nb::device::cpu>;
using BitMatrix = nb::ndarray<const uint16_t, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using BitVector = nb::ndarray<const uint16_t, nb::numpy, nb::ndim<1>, nb::c_contig>;

template <class T>
using Row = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Row<T>& row) {
  return {row.data(), row.shape(0)};
}

template <class T>
std::span<const T> span_of(const std::optional<Row<T>>& row) {
  return row ? span_of(*row) : std::span<const T>();
}

template <class T>
nb::ndarray<nb::numpy, T> owned_array(std::vector<T> values, std::vector<size_t> shape) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(held->data(), shape.size(), shape.data(), owner);
}

template <class T>
nb::ndarray<nb::numpy, T> owned_array(std::vector<T> values) {
  const size_t size = values.size();
  return owned_array(std::move(values), {size});
}

inline const Kernels& kernels_or_throw(const std::string& name) {
  const Kernels* kernels = kernels_named(name);
  if (kernels == nullptr) throw std::invalid_argument("instruction set not available: " + name);
  return *kernels;
}

inline const Kernels& kernels_or_default(const std::optional<std::string>& name) {
  return kernels_or_throw(name ? *name : available_isas().front());
}

// The rows of a matrix; throws unless it is C-contiguous.
inline RowSource row_source(const BitMatrix& matrix) {
  if (matrix.stride(1) != 1 || matrix.stride(0) != static_cast<int64_t>(matrix.shape(1)))
    throw std::invalid_argument("weights must be C-contiguous");
  return {reinterpret_cast<const uint8_t*>(matrix.data()), static_cast<int64_t>(matrix.shape(0))};
}

inline Precision precision_of(bool is_draft) {
  return is_draft ? Precision::kFp4 : Precision::kExact;
}

// A copy of rows, [rows, width]; `row_of(i)` is row i.
template <class RowOf>
nb::ndarray<nb::numpy, float> copy_rows(int64_t rows, int64_t width, const RowOf& row_of) {
  std::vector<float> copy;
  copy.reserve(static_cast<size_t>(rows * width));
  for (int64_t i = 0; i < rows; ++i) {
    const std::span<const float> row = row_of(i);
    copy.insert(copy.end(), row.begin(), row.end());
  }
  return owned_array(std::move(copy), {static_cast<size_t>(rows), static_cast<size_t>(width)});
}

// A copy of the last forward's logits, [rows, vocabulary].
template <class Forward>
nb::ndarray<nb::numpy, float> copy_logits(Forward& forward, int64_t vocabulary) {
  return copy_rows(forward.logit_rows(), vocabulary,
                   [&](int64_t row) { return forward.logits(row); });
}

// The Python names of an enumeration's values, in the order of the values.
template <class Kind>
const std::vector<std::string> kNamesOf;

template <class Kind>
Kind kind_of(const std::string& name) {
  const auto& names = kNamesOf<Kind>;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::invalid_argument("unknown kind: " + name);
  return static_cast<Kind>(found - names.begin());
}

}  // namespace specqd
