// The pages of a long sequence to which the rows of a draft attend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

// In layers without a window, rows attend to all pages from `recent` on, and to some of the pages
// before it. These differ by strip (by layer and key-value head), in number too: at most `most`,
// which is below `recent`.
struct PageChoice {
  int64_t recent = 0, most = 0;
  std::vector<int32_t> earlier;  // by strip, ascending in each
  std::vector<size_t> ends;      // of each strip in `earlier`

  std::span<const int32_t> of_strip(int64_t strip) const {
    const auto at = static_cast<size_t>(strip);
    const size_t begin = at == 0 ? 0 : ends[at - 1];
    return std::span(earlier).subspan(begin, ends[at] - begin);
  }
  int64_t skipped_pages(int64_t strip) const { return recent - std::ssize(of_strip(strip)); }
  // Those that every strip leaves out. Where a strip leaves out more, its list begins later, so
  // that the recent pages have one place in the lists of all strips.
  int64_t skipped_by_all() const { return recent - most; }
  int64_t begin_of_strip(int64_t strip) const { return most - std::ssize(of_strip(strip)); }
};

}  // namespace specqd
