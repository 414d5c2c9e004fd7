// The pages of a long sequence to which the rows of a draft attend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

// In layers without a window, rows attend to all pages from `recent` on, and to `count` of the
// pages before it, which may differ by strip: by layer and key-value head. `count` is below
// `recent`.
struct PageChoice {
  int64_t recent = 0, count = 0;
  std::vector<int32_t> earlier;  // [strips][count], ascending in each strip

  int64_t skipped_pages() const { return recent - count; }
  std::span<const int32_t> of_strip(int64_t strip) const {
    return std::span(earlier).subspan(static_cast<size_t>(strip * count),
                                      static_cast<size_t>(count));
  }
};

}  // namespace specqd
