#include "runtime/pages.h"

#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

namespace specqd {

size_t page_size() {
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return info.dwPageSize;
}

void* map_pages(size_t bytes) {
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void unmap_pages(void* pages, size_t) { VirtualFree(pages, 0, MEM_RELEASE); }

void return_pages(void* pages, size_t bytes) {
  VirtualFree(pages, bytes, MEM_DECOMMIT);
  VirtualAlloc(pages, bytes, MEM_COMMIT, PAGE_READWRITE);
}

// Large pages need a privilege that users do not have by default. They are also taken from memory
// at once, touched or not, and could not be returned one by one.
void allow_huge_pages(void*, size_t, bool) {}

bool prefer_node(int, void*, size_t) { return false; }

}  // namespace specqd

#endif
