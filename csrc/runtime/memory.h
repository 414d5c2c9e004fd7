// Large blocks of memory for weights and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace specqd {

// Zeroed anonymous memory. From 2 MB on it is aligned to 2 MB and uses huge pages. Untouched pages
// cost nothing, and a page lies on the node of the thread that touches it first. Throws
// std::bad_alloc.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes, bool uses_huge_pages = true);
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Uses small pages around this offset: what lies before and behind it may be put on two nodes.
  void split_at(size_t offset);
  void keep_first(size_t bytes);  // returns the rest to the system

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
};

// Returns the heap's free pages to the system, if the C library can.
void release_free_memory();

}  // namespace specqd
