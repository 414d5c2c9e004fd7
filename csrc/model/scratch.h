// Memory for a block's intermediate results. All blocks of a decoder use the same memory, one after
// the other, so a result is valid only while its block runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/memory.h"

namespace specqd {

// An array of T in a block's scratch memory.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(size_t offset) : offset_(offset) {}
  T* in(const Memory& memory) const { return reinterpret_cast<T*>(memory.data() + offset_); }

 private:
  size_t offset_ = 0;
};

// Places a block's arrays, one after the other.
class ScratchLayout {
 public:
  template <class T>
  Scratch<T> add(int64_t count) {
    const Scratch<T> placed(bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return placed;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlignment = 64;
  size_t bytes_ = 0;
};

}  // namespace specqd
