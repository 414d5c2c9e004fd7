// Large blocks of memory for weights and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace specqd {

// Zeroed anonymous memory. Blocks of 2 MB or more are aligned to 2 MB and use huge pages. Pages
// that were never touched take no memory. Without put_on(), a page is on the NUMA node of the
// thread that touches it first, and the system's automatic balancing may move it later. Throws
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
  // Puts the pages of bytes [first, last), which must be untouched, on a NUMA node and keeps them
  // there; if the node is full, on other nodes. If the system refuses, or the process has too many
  // parts, each page is put on the node of the thread that touches it first, and no huge page
  // reaches from this part into another.
  void put_on(int node, size_t first, size_t last);
  void keep_first(size_t bytes);  // returns all pages after these bytes to the system

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  int64_t parts_ = 0;  // mappings beyond the first
};

// Whether the system lets this process put pages on a node; containers forbid it by default.
bool may_put_on(int node);

// Returns the heap's free pages to the system, if the C library can.
void release_free_memory();

}  // namespace specqd
