// Prints digests of what each instruction set computes, for comparison with another system's, and
// to standard error what the core finds out about this machine. Needs no Python.
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "weights/pack.h"

namespace specqd {
namespace {

constexpr int64_t kOutputs = 100, kInputs = 1000, kRows = 9;

class Noise {
 public:
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  // In steps of 2^-20, so that no operation rounds.
  float uniform() { return static_cast<float>(bits() % (1u << 21)) * 0x1p-20f - 1.0f; }
  std::vector<float> floats(int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(uniform());
    return values;
  }

 private:
  uint64_t state_ = 7;
};

class Digest {  // FNV-1a
 public:
  template <class T>
  Digest& add(std::span<const T> values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    for (size_t i = 0; i < values.size_bytes(); ++i) state_ = (state_ ^ bytes[i]) * 1099511628211u;
    return *this;
  }
  template <class T>
  Digest& add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }
  void print(const std::string& name, const char* what) const {
    std::printf("%s %s %016llx\n", name.c_str(), what, static_cast<unsigned long long>(state_));
  }

 private:
  uint64_t state_ = 14695981039346656037u;
};

using Prepare = void (*)(const float*, int64_t, int64_t, uint8_t*);
using Product = void (*)(const PackedMatrix&, int64_t, int64_t, const PreparedRows&, float*,
                         int64_t);

std::vector<float> multiply(Pool& pool, const PackedMatrix& w, const std::vector<float>& x,
                            size_t row_bytes, Prepare prepare, Product product) {
  const size_t stride = (row_bytes + 63) / 64 * 64;
  const int64_t width = w.panels * kPanel;
  const Memory prepared(stride * kRows);
  std::vector<float> out(static_cast<size_t>(kRows * width));
  pool.run([&](Team& team) {
    team.share(kRows, 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        prepare(x.data() + row * kInputs, kInputs, w.tiles,
                prepared.data() + static_cast<size_t>(row) * stride);
    });
    team.share(w.panels, 2, [&](int64_t first, int64_t last) {
      product(w, first, last, {prepared.data(), stride, kRows}, out.data() + first * kPanel, width);
    });
  });
  return out;
}

void print_products(Pool& pool, const Kernels& kernels) {
  Noise noise;
  std::vector<uint16_t> weights(kOutputs * kInputs);
  const std::vector<float> wide = noise.floats(kOutputs * kInputs);
  kernels.round_bf16(wide.data(), std::ssize(wide), weights.data());
  const RowSource source{reinterpret_cast<const uint8_t*>(weights.data()), kOutputs};
  PackError error;
  const auto packed = PackedWeight::pack(pool, kernels, {&source, 1}, kInputs, {}, &error);
  const PackedWeight::Planes planes = packed->planes();
  Digest()
      .add(planes.codes)
      .add(planes.scales)
      .add(planes.residuals)
      .add(planes.patches)
      .print(kernels.name, "planes");

  const PackedMatrix& w = packed->matrix();
  const std::vector<float> x = noise.floats(kRows * kInputs);
  Digest()
      .add(multiply(pool, w, x, kernels.exact_row_bytes(w.tiles), kernels.prepare_exact,
                    kernels.exact_product))
      .print(kernels.name, "exact");
  Digest()
      .add(multiply(pool, w, x, kernels.draft_row_bytes(w.tiles), kernels.prepare_draft,
                    kernels.draft_product))
      .print(kernels.name, "draft");
}

void print_elementwise(Pool& pool, const Kernels& kernels) {
  Noise noise;
  constexpr int64_t kCount = 320;
  std::vector<float> scores = noise.floats(kCount), gate = noise.floats(kCount), out(kCount);
  std::vector<uint16_t> weight(kCount);
  pool.run([&](Team& team) {  // on a thread that the core started
    if (team.thread() != 1) return;
    const auto part =
        kernels.softmax_part(scores.data(), kCount, 3, kCount - 5, 7.5f, nullptr, nullptr);
    kernels.silu_times(gate.data(), scores.data(), kCount, out.data());
    kernels.round_bf16(gate.data(), kCount, weight.data());
    kernels.rms_norm(gate.data(), weight.data(), kCount, 1e-6f, 1.0f, gate.data());
    scores.push_back(part.maximum);
    scores.push_back(part.sum);
  });
  Digest().add(scores).add(out).add(gate).print(kernels.name, "elementwise");
}

bool carries_exceptions(Pool& pool) {
  try {
    pool.run([](Team& team) {
      if (team.thread() == 1) throw 7;
      team.barrier();
    });
  } catch (int thrown) {
    return thrown == 7;
  }
  return false;
}

// Whether pages are zero at first, hold what is written, and are zero again once returned.
bool has_memory() {
  constexpr size_t kBytes = size_t{5} << 20, kKept = size_t{3} << 20;
  Memory block(kBytes);
  bool is_right = block.data()[0] == 0 && block.data()[kBytes - 1] == 0;
  std::memset(block.data(), 1, kBytes);
  block.keep_first(kKept);
  return is_right && block.data()[kKept - 1] == 1 && block.data()[kKept] == 0;
}

int run() {
  std::fprintf(stderr, "%s: %d threads, %.1f GB of memory\n", cpu_model().c_str(), usable_threads(),
               static_cast<double>(usable_memory()) / 1e9);
  Pool pool(2);
  for (const std::string& name : available_isas()) {
    print_products(pool, *kernels_named(name));
    print_elementwise(pool, *kernels_named(name));
  }
  std::printf("exceptions %d, memory %d\n", carries_exceptions(pool), has_memory());
  return 0;
}

}  // namespace
}  // namespace specqd

int main() { return specqd::run(); }
