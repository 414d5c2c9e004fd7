#include "runtime/memory.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <new>

#include "runtime/pages.h"

namespace specqd {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Each part of a block needs one to three mappings, and the system allows 65,530 mappings per
// process by default. A model with many small experts has more parts than that.
constexpr int64_t kMostParts = 16'000;
std::atomic<int64_t> parts_in_use{0};

}  // namespace

Memory::Memory(size_t bytes, bool uses_huge_pages) : size_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes >= kHugePage ? bytes + kHugePage : bytes;
  mapping_ = map_pages(mapped_);
  if (mapping_ == nullptr) throw std::bad_alloc();
  auto address = reinterpret_cast<uintptr_t>(mapping_);
  if (bytes >= kHugePage) address = (address + kHugePage - 1) / kHugePage * kHugePage;
  data_ = reinterpret_cast<uint8_t*>(address);
  if (bytes >= kHugePage) allow_huge_pages(data_, bytes, uses_huge_pages);
}

void Memory::put_on(int node, size_t first, size_t last) {
  const size_t page = page_size();
  const size_t begin = first / page * page;
  const size_t end = last == size_ ? (last + page - 1) / page * page : last / page * page;
  if (begin >= end) return;
  if (parts_in_use.fetch_add(1) >= kMostParts) {  // blocks of small pages share a mapping
    --parts_in_use;
    return allow_huge_pages(data_, size_, false);
  }
  ++parts_;
  if (prefer_node(node, data_ + begin, end - begin)) return;
  for (const size_t edge : {begin, end}) {
    const size_t huge = edge / kHugePage * kHugePage;
    // A small block may share a huge page with its neighbours if the system uses huge pages for all
    // memory.
    if (huge < size_ && (edge > huge || size_ < kHugePage))
      allow_huge_pages(data_ + huge, std::min(kHugePage, size_ - huge), false);
  }
}

void Memory::keep_first(size_t bytes) {
  const size_t page = page_size();
  const size_t kept = (bytes + page - 1) / page * page;
  if (kept < size_) return_pages(data_ + kept, size_ - kept);
}

Memory::~Memory() {
  if (mapping_ != nullptr) unmap_pages(mapping_, mapped_);
  parts_in_use -= parts_;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(parts_, other.parts_);
  return *this;
}

bool may_put_on(int node) {
  const Memory block(1);
  return prefer_node(node, block.data(), 1);
}

void release_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace specqd
