#include "runtime/pages.h"

#if !defined(_WIN32)

#include <sys/mman.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <climits>
#include <vector>

namespace specqd {

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

void* map_pages(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void unmap_pages(void* pages, size_t bytes) { munmap(pages, bytes); }

void return_pages(void* pages, size_t bytes) {
#if defined(__linux__)
  madvise(pages, bytes, MADV_DONTNEED);
#else  // elsewhere that advice may keep them
  mmap(pages, bytes, PROT_READ | PROT_WRITE,
       MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
#endif
}

void allow_huge_pages(void* pages, size_t bytes, bool is_allowed) {
#if defined(MADV_HUGEPAGE)
  madvise(pages, bytes, is_allowed ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
  static_cast<void>(pages), static_cast<void>(bytes), static_cast<void>(is_allowed);
#endif
}

// Calls Linux's mbind with the policy "preferred". Unlike with "bind", the process survives if the
// node is full. Automatic NUMA balancing does not move pages that have such a policy.
bool prefer_node(int node, void* pages, size_t bytes) {
#if defined(__linux__)
  constexpr int kPreferred = 1;
  constexpr size_t kBits = CHAR_BIT * sizeof(unsigned long);
  const auto id = static_cast<size_t>(node);
  std::vector<unsigned long> nodes(id / kBits + 1);
  nodes.back() = 1UL << id % kBits;
  return syscall(SYS_mbind, pages, bytes, kPreferred, nodes.data(), nodes.size() * kBits + 1, 0) ==
         0;
#else
  static_cast<void>(node), static_cast<void>(pages), static_cast<void>(bytes);
  return false;
#endif
}

}  // namespace specqd

#endif
