#include "model/bit_record.h"

namespace specqd {
namespace {

// FNV-1a over the bytes of the values.
uint64_t hash_of(const float* values, int64_t count) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(values);
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i < count * static_cast<int64_t>(sizeof(float)); ++i)
    hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

}  // namespace

void BitRecord::enter_layer(Team& team, int64_t layer) {
  team.share(1, 1, [&](int64_t, int64_t) { layer_ = layer; });
}

void BitRecord::add(Team& team, const char* stage, const float* values, int64_t rows, int64_t width,
                    int64_t stride) {
  team.share(1, 1, [&](int64_t, int64_t) {
    Stage added{layer_, stage, {}};
    for (int64_t row = 0; row < rows; ++row)
      added.rows.push_back(hash_of(values + row * stride, width));
    stages_.push_back(std::move(added));
  });
}

}  // namespace specqd
