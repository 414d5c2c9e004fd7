// Fuzzes the planes of packed matrices. Any planes must be refused, or be read within bounds, give
// finite weights, and give the same bits with the kernels of every instruction set.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels/float_mode.h"
#include "kernels_here.h"
#include "weights/pack_layout.h"

namespace specqd {
namespace {

constexpr size_t kMostPatches = 200, kMostTiles = 64;

// A plane in a block of exactly its size, so that AddressSanitizer detects each access after it.
template <class T>
class Plane {
 public:
  Plane(FuzzedDataProvider& given, size_t count) : count_(count) {
    offset_ = given.ConsumeIntegralInRange(0, 60) == 60 ? sizeof(T) : 0;
    if (given.ConsumeIntegralInRange(0, 40) == 40) count_ += given.ConsumeBool() ? 1 : -(count > 0);
    block_.reset(
        static_cast<uint8_t*>(::operator new(offset_ + count_ * sizeof(T), std::align_val_t(64))));
    std::vector<T> seed;
    seed.resize(given.ConsumeIntegralInRange<size_t>(1, 64));
    for (T& value : seed) value = given.ConsumeIntegral<T>();
    for (size_t i = 0; i < count_; ++i) data()[i] = seed[i % seed.size()];
  }
  T* data() { return reinterpret_cast<T*>(block_.get() + offset_); }
  std::span<T> values() { return {data(), count_}; }

 private:
  struct Free {
    void operator()(uint8_t* block) const { ::operator delete(block, std::align_val_t(64)); }
  };
  size_t count_, offset_;
  std::unique_ptr<uint8_t[], Free> block_;
};

bool is_finite(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }

uint32_t comparable(float value) {
  return std::isnan(value) ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
}

std::vector<std::vector<uint16_t>> read_rows(const PackedWeight& weight, const Kernels& kernels) {
  std::vector<std::vector<uint16_t>> rows;
  for (int64_t row = 0; row < weight.rows(); ++row)
    weight.read_row(kernels, row, rows.emplace_back(static_cast<size_t>(weight.columns())).data());
  return rows;
}

using Prepare = void (*)(const float*, int64_t, int64_t, uint8_t*);
using Product = void (*)(const PackedMatrix&, int64_t, int64_t, const PreparedRows&, float*,
                         int64_t);

std::vector<uint32_t> multiply(const PackedMatrix& m, std::span<const float> inputs,
                               int64_t columns, size_t row_bytes, Prepare prepare,
                               Product product) {
  const auto count = std::ssize(inputs) / columns, width = m.panels * kPanel;
  const size_t stride = align(row_bytes);
  const auto rows = std::unique_ptr<uint8_t, void (*)(uint8_t*)>(
      static_cast<uint8_t*>(
          ::operator new(stride* static_cast<size_t>(count), std::align_val_t(64))),
      [](uint8_t* block) { ::operator delete(block, std::align_val_t(64)); });
  for (int64_t row = 0; row < count; ++row)
    prepare(inputs.data() + row * columns, columns, m.tiles,
            rows.get() + static_cast<size_t>(row) * stride);
  std::vector<float> out(static_cast<size_t>(count * width), -1.0f);
  product(m, 0, m.panels, {rows.get(), stride, count}, out.data(), width);
  std::vector<uint32_t> bits;
  for (const float value : out) bits.push_back(comparable(value));
  return bits;
}

void check_products(const PackedWeight& weight, FuzzedDataProvider& given) {
  std::vector<float> inputs(
      static_cast<size_t>(given.ConsumeIntegralInRange<int64_t>(1, 9) * weight.columns()));
  std::vector<float> seed;
  for (int i = 0; i < 7; ++i) seed.push_back(given.ConsumeFloatingPointInRange(-64.0f, 64.0f));
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = seed[i % seed.size()];
  const PackedMatrix& m = weight.matrix();
  const auto both = [&](const Kernels& kernels) {
    const auto exact = multiply(m, inputs, weight.columns(), kernels.exact_row_bytes(m.tiles),
                                kernels.prepare_exact, kernels.exact_product);
    const auto draft = multiply(m, inputs, weight.columns(), kernels.draft_row_bytes(m.tiles),
                                kernels.prepare_draft, kernels.draft_product);
    return std::pair(exact, draft);
  };
  const auto expected = both(*kernels_here().back());
  for (const Kernels* kernels : kernels_here()) CHECK(both(*kernels) == expected);
}

// Nested, plain or MXFP4 planes of a matrix. Most of them fit the matrix.
struct Matrix {
  Matrix(FuzzedDataProvider& given, size_t tiles, bool nested, bool plain_weights)
      : layout(tiles),
        codes(given, layout.codes),
        scales(given, layout.scales),
        scale_code(given, 2),
        residuals(given, nested ? layout.residuals : 0),
        starts(given, nested ? tiles + 1 : 0),
        patches(given, nested ? order_starts(given, tiles) + kPatchPadding : 0),
        plain(given, plain_weights ? layout.plain / sizeof(uint16_t) : 0) {
    if (given.ConsumeIntegralInRange(0, 3) < 3)
      for (uint8_t& scale : scales.values()) scale = std::clamp<uint8_t>(scale, 4, 250);
    if (scale_code.values().size() != 2 || given.ConsumeIntegralInRange(0, 7) == 7) return;
    const bool is_e8m0 = !(nested || plain_weights) || given.ConsumeBool();
    scale_code.values()[0] = is_e8m0 ? 23 : 20;
    scale_code.values()[1] =
        is_e8m0 ? 0 : given.ConsumeIntegralInRange<uint32_t>(0, kMostScale) << 20;
  }

  // Mostly puts the starts of patches in order; returns the number of patches.
  size_t order_starts(FuzzedDataProvider& given, size_t tiles) {
    const size_t most = std::min(kMostPatches, tiles * kTileWeights);
    const auto count = given.ConsumeIntegralInRange<uint32_t>(0, static_cast<uint32_t>(most));
    if (starts.values().empty() || given.ConsumeIntegralInRange(0, 7) == 7) return count;
    uint32_t start = 0;
    for (uint32_t& each : starts.values())
      start = std::min(count, std::exchange(each, start) % 8 + start);
    starts.values().back() = count;
    return count;
  }

  PackedWeight::Planes planes() {
    return {codes.values(),  scales.values(),  scale_code.values(), residuals.values(),
            starts.values(), patches.values(), plain.values()};
  }

  PlaneLayout layout;
  Plane<uint8_t> codes, scales;
  Plane<uint32_t> scale_code;
  Plane<uint8_t> residuals;
  Plane<uint32_t> starts;
  Plane<uint16_t> patches, plain;
};

void check_planes(FuzzedDataProvider& given) {
  static Pool pool(1);
  const FlushSubnormals flush;
  const bool interleaved = given.ConsumeBool();
  std::vector<int64_t> rows{given.ConsumeIntegralInRange<int64_t>(1, 70)};
  if (interleaved || given.ConsumeBool())
    rows.push_back(interleaved ? rows.front() : given.ConsumeIntegralInRange<int64_t>(1, 40));
  const int64_t columns = given.ConsumeIntegralInRange<int64_t>(1, 140);
  const auto tiles =
      static_cast<size_t>(panel_count(rows, interleaved) * ((columns + kBlock - 1) / kBlock));
  if (tiles > kMostTiles) return;
  const int kind = given.ConsumeIntegralInRange(0, 3);
  const bool is_nested = kind < 2, is_plain = kind == 2;
  Matrix matrix(given, tiles, is_nested, is_plain);

  std::string problem;
  const auto weight =
      PackedWeight::map(pool, matrix.planes(), rows, columns, interleaved, nullptr, &problem);
  CHECK((weight == nullptr) == !problem.empty());
  if (weight == nullptr) return;
  const auto expected = read_rows(*weight, *kernels_here().back());
  for (const auto& row : expected) CHECK(is_plain || std::ranges::all_of(row, is_finite));
  for (const Kernels* kernels : kernels_here()) CHECK(read_rows(*weight, *kernels) == expected);
  check_products(*weight, given);
}

}  // namespace
}  // namespace specqd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider given(data, size);
  specqd::check_planes(given);
  return 0;
}
