// Large blocks of memory for weights and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace specqd {

// Zeroed anonymous memory. From 2 MB on it is aligned to 2 MB and uses huge pages. Untouched pages
// cost nothing. Without put_on(), a page lies on the node of the thread that touches it first, and
// the kernel's automatic balancing may move it later. Throws std::bad_alloc.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes, bool uses_huge_pages = true);
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Puts the pages of a part, which nobody has touched, on a node, where they stay. A full node's
  // pages go to others. Where the system refuses, or the process has too many parts, the pages are
  // for the first toucher, and none of them is a huge page that reaches into another part.
  void put_on(int node, size_t first, size_t last);
  void keep_first(size_t bytes);  // returns the rest to the system

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  int64_t parts_ = 0;  // mappings beyond the first
};

// Whether this process may put pages on a node; containers forbid it by default.
bool may_put_on(int node);

// Returns the heap's free pages to the system, if the C library can.
void release_free_memory();

}  // namespace specqd
