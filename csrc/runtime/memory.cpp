#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <climits>
#include <new>
#include <vector>

namespace specqd {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Each part of a block needs one to three mappings, and the system allows 65,530 mappings per
// process by default. A model with many small experts has more parts than that.
constexpr int64_t kMostParts = 16'000;
std::atomic<int64_t> parts_in_use{0};

// Calls Linux's mbind with the policy "preferred". Unlike with "bind", the process survives if the
// node is full. Automatic NUMA balancing does not move pages that have such a policy.
bool prefer(int node, void* data, size_t bytes) {
#if defined(__linux__)
  constexpr int kPreferred = 1;
  constexpr size_t kBits = CHAR_BIT * sizeof(unsigned long);
  const auto id = static_cast<size_t>(node);
  std::vector<unsigned long> nodes(id / kBits + 1);
  nodes.back() = 1UL << id % kBits;
  return syscall(SYS_mbind, data, bytes, kPreferred, nodes.data(), nodes.size() * kBits + 1, 0) ==
         0;
#else
  static_cast<void>(node), static_cast<void>(data), static_cast<void>(bytes);
  return false;
#endif
}

void refuse_huge_pages(void* data, size_t bytes) {
#if defined(MADV_NOHUGEPAGE)
  madvise(data, bytes, MADV_NOHUGEPAGE);
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

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

void Memory::put_on(int node, size_t first, size_t last) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = first / page * page;
  const size_t end = last == size_ ? (last + page - 1) / page * page : last / page * page;
  if (begin >= end) return;
  if (parts_in_use.fetch_add(1) >= kMostParts) {  // blocks of small pages share a mapping
    --parts_in_use;
    return refuse_huge_pages(data_, size_);
  }
  ++parts_;
  if (prefer(node, data_ + begin, end - begin)) return;
  for (const size_t edge : {begin, end}) {
    const size_t huge = edge / kHugePage * kHugePage;
    // A small block may share a huge page with its neighbours if the system uses huge pages for all
    // memory.
    if (huge < size_ && (edge > huge || size_ < kHugePage))
      refuse_huge_pages(data_ + huge, std::min(kHugePage, size_ - huge));
  }
}

void Memory::keep_first(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t kept = (bytes + page - 1) / page * page;
  if (kept < size_) madvise(data_ + kept, size_ - kept, MADV_DONTNEED);
}

Memory::~Memory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
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
  return prefer(node, block.data(), 1);
}

void release_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace specqd
