// A hash of every row after every stage of a forward. Two ways of computing the same rows can then
// be compared, and the first stage at which their bits differ found.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/pool.h"

namespace specqd {

class BitRecord {
 public:
  static constexpr int64_t kBeforeLayers = -1;

  struct Stage {
    int64_t layer;  // or kBeforeLayers; the number of layers stands for the output head
    std::string name;
    std::vector<uint64_t> rows;  // a hash of each batch row's bits
  };

  // Every thread calls these. Each ends with a barrier.
  void enter_layer(Team& team, int64_t layer);
  // Adds the rows at `values`, each of `width` values; their starts are `stride` apart.
  void add(Team& team, const char* stage, const float* values, int64_t rows, int64_t width,
           int64_t stride);

  std::vector<Stage> take() { return std::move(stages_); }

 private:
  int64_t layer_ = kBeforeLayers;
  std::vector<Stage> stages_;
};

}  // namespace specqd
