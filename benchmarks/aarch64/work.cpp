// Runs one kernel on random data, on a certain amount of work and then on twice as much, each
// between the markers that trace.c looks for: work ISA KERNEL ROWS AMOUNT.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/sampling_kernels.h"

namespace specqd {
// Null if the program is linked without them.
[[gnu::weak]] const Kernels* portable_kernels();
[[gnu::weak]] const Kernels* neon_kernels();
[[gnu::weak]] const Kernels* neondot_kernels();
}  // namespace specqd

using namespace specqd;

namespace {

constexpr int kPatchesPerTile = 21;  // a trained model has about as many

uint64_t random_bits() {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13, state ^= state >> 7;
  return state ^= state << 17;
}
float random_value() { return static_cast<float>(random_bits() % 20001) / 10000.0f - 1.0f; }

template <class T>
std::vector<T> random_values(size_t count) {
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(random_bits());
  return values;
}
template <>
std::vector<float> random_values<float>(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = random_value();
  return values;
}

const Kernels& table_named(const char* name) {
  for (const auto kernels : {portable_kernels, neon_kernels, neondot_kernels})
    if (kernels != nullptr && std::strcmp(kernels()->name, name) == 0) return *kernels();
  std::exit(2);
}

template <class F>
void between_markers(const F& f) {
  asm volatile("hint #126" : : : "memory");
  f();
  asm volatile("hint #127" : : : "memory");
}

// One panel of nested tiles times `rows` rows.
void multiply(const Kernels& kernels, bool is_exact, int64_t rows, int64_t tiles) {
  const auto count = static_cast<size_t>(tiles);
  const auto codes = random_values<uint8_t>(count * kTileCodes);
  const auto residuals = random_values<uint8_t>(count * kTileWeights);
  const std::vector<uint8_t> scales(count * kPanel, 40);
  const auto patches = random_values<uint16_t>(count * kPatchesPerTile + kPatchPadding);
  std::vector<uint32_t> starts(count + 1);
  for (size_t i = 0; i <= count; ++i) starts[i] = static_cast<uint32_t>(i) * kPatchesPerTile;
  PackedMatrix w;
  w.panels = 1, w.tiles = tiles;
  w.codes = codes.data(), w.scales = scales.data(), w.residuals = residuals.data();
  w.patch_starts = starts.data(), w.patches = patches.data();
  w.scale = {20, 100u << 23};
  const size_t stride = (is_exact ? kernels.exact_row_bytes : kernels.draft_row_bytes)(tiles);
  const auto x = random_values<float>(count * kBlock);
  std::vector<uint8_t> prepared(stride * static_cast<size_t>(rows));
  for (int64_t m = 0; m < rows; ++m)
    (is_exact ? kernels.prepare_exact : kernels.prepare_draft)(
        x.data(), tiles * kBlock, tiles, prepared.data() + static_cast<size_t>(m) * stride);
  std::vector<float> out(static_cast<size_t>(rows) * kPanel);
  const PreparedRows inputs{prepared.data(), stride, rows};
  between_markers([&] {
    (is_exact ? kernels.exact_product : kernels.draft_product)(w, 0, 1, inputs, out.data(), kPanel);
  });
}

// An operation on 32 * `blocks` values.
void operate(const Kernels& kernels, const char* name, int64_t blocks) {
  const int64_t n = blocks * kBlock;
  const auto count = static_cast<size_t>(n);
  auto x = random_values<float>(count);
  const auto y = random_values<float>(count);
  const auto weights = random_values<uint16_t>(count);
  std::vector<float> out(count);
  std::vector<uint8_t> row(kernels.exact_row_bytes(blocks));
  std::vector<uint16_t> rounded(count);
  std::vector<int32_t> ids(count);
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  between_markers([&] {
    if (is("softmax"))
      kernels.softmax_part(x.data(), n, 0, n, 0.125f);
    else if (is("SiLU"))
      kernels.silu_times(x.data(), y.data(), n, out.data());
    else if (is("RMSNorm"))
      kernels.rms_norm(x.data(), weights.data(), n, 1e-6f, 0, out.data());
    else if (is("rotation"))
      kernels.rotate(x.data(), y.data(), y.data(), n / 2);
    else if (is("rounding"))
      kernels.round_bf16(x.data(), n, rounded.data());
    else if (is("exact inputs"))
      kernels.prepare_exact(x.data(), n, blocks, row.data());
    else if (is("draft inputs"))
      kernels.prepare_draft(x.data(), n, blocks, row.data());
    else if (is("noise"))  // of tokens that could win; none does
      kernels.sampling->find_survivors(y.data(), 0, n, NoiseStream{}, 1e-12f, ids.data());
    else
      std::exit(2);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const Kernels& kernels = table_named(argv[1]);
  const int64_t rows = std::atoll(argv[3]), amount = std::atoll(argv[4]);
  for (const int64_t times : {1, 2}) {
    if (std::strcmp(argv[2], "exact") == 0 || std::strcmp(argv[2], "fp4") == 0)
      multiply(kernels, argv[2][0] == 'e', rows, times * amount);
    else
      operate(kernels, argv[2], times * amount);
  }
}
