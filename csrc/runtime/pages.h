// Pages of memory from the system. pages_posix.cpp and pages_windows.cpp define these functions,
// each for its own systems.
#pragma once

#include <cstddef>

namespace specqd {

size_t page_size();

// Zeroed pages that can be written; those that were never touched take no memory. Null if the
// system has none.
void* map_pages(size_t bytes);
void unmap_pages(void* pages, size_t bytes);  // all that one call has mapped

// Returns the memory of pages to the system; they are then as those that were never touched.
void return_pages(void* pages, size_t bytes);

// Whether the system uses huge pages there, if it has any that a process can ask for: only Linux.
void allow_huge_pages(void* pages, size_t bytes, bool is_allowed);

// Puts untouched pages on a NUMA node and keeps them there; on other nodes if it is full. Returns
// false if the system refuses; only Linux does not always.
bool prefer_node(int node, void* pages, size_t bytes);

}  // namespace specqd
