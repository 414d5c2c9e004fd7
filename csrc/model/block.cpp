#include "model/block.h"

namespace specqd {

size_t bytes_of(const PackedWeight& weight, Precision precision) {
  return precision == Precision::kFp4 ? weight.bytes().draft() : weight.bytes().exact();
}

size_t bytes_of(const FeedForward& weights, Precision precision) {
  return bytes_of(*weights.gate_up, precision) + bytes_of(*weights.down, precision);
}

size_t fixed_bytes(std::span<const BlockMatrix> matrices, Precision precision) {
  size_t bytes = 0;
  for (const BlockMatrix& each : matrices)
    if (each.chosen == each.chosen_of)
      bytes += bytes_of(*each.weight, each.is_always_exact ? Precision::kExact : precision);
  return bytes;
}

size_t bytes_of_row(std::span<const BlockMatrix> matrices, Precision precision) {
  size_t of_all = 0;
  int64_t chosen = 1, chosen_of = 1;
  for (const BlockMatrix& each : matrices)
    if (each.chosen != each.chosen_of) {
      of_all += bytes_of(*each.weight, precision);
      chosen = each.chosen, chosen_of = each.chosen_of;
    }
  return fixed_bytes(matrices, precision) +
         of_all * static_cast<size_t>(chosen) / static_cast<size_t>(chosen_of);
}

}  // namespace specqd
