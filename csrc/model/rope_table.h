// Cosines and sines of a rope by position, computed up to the largest position needed so far.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "model/rope.h"

namespace specqd {

class RopeTable {
 public:
  explicit RopeTable(const RopeSpec& spec);

  // Computes the angles of positions below `end`.
  void reach(int64_t end);
  // Rotates the first dims of a head.
  void rotate(const Kernels& kernels, float* values, int64_t position) const {
    const int64_t half = std::ssize(inverse_frequencies_), at = position * half;
    kernels.rotate(values, cosines_.data() + at, sines_.data() + at, half);
  }
  // The factor on a rotated query.
  float query_scale(int64_t position) const { return rope_query_scale(spec_, position); }

 private:
  RopeSpec spec_;
  std::vector<float> inverse_frequencies_;
  float factor_;
  int64_t positions_ = 0;
  std::vector<float> cosines_, sines_;  // [position][rotated / 2]
};

}  // namespace specqd
