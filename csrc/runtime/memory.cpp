#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <new>

namespace specqd {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Memory::Memory(size_t bytes, bool uses_huge_pages) : size_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes >= kHugePage ? bytes + kHugePage : bytes;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  auto address = reinterpret_cast<uintptr_t>(mapping_);
  if (bytes >= kHugePage) address = (address + kHugePage - 1) / kHugePage * kHugePage;
  data_ = reinterpret_cast<uint8_t*>(address);
#if defined(MADV_HUGEPAGE)
  if (bytes >= kHugePage) madvise(data_, bytes, uses_huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
  static_cast<void>(uses_huge_pages);
#endif
}

void Memory::split_at(size_t offset) {
#if defined(MADV_NOHUGEPAGE)
  const size_t begin = offset / kHugePage * kHugePage;
  // A small block may share a huge page with its neighbours, where the system makes them unasked.
  if (offset < size_ && (offset > begin || size_ < kHugePage))
    madvise(data_ + begin, std::min(kHugePage, size_ - begin), MADV_NOHUGEPAGE);
#else
  static_cast<void>(offset);
#endif
}

void Memory::keep_first(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t kept = (bytes + page - 1) / page * page;
  if (kept < size_) madvise(data_ + kept, size_ - kept, MADV_DONTNEED);
}

Memory::~Memory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

void release_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace specqd
