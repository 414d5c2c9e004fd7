#include "model/partial_head.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace specqd {
namespace {

// A sixteenth of Gemma 3's vocabulary and a third of SmolLM2's; docs/levels.md has the measurement.
constexpr int64_t kFirstIds = 16384;
constexpr size_t kWindow = 16384;  // tokens, of one sequence or of many

}  // namespace

PartialHead::PartialHead(int64_t vocabulary)
    : panels_((vocabulary + kPanel - 1) / kPanel),
      first_ids_(kFirstIds),
      uses_(static_cast<size_t>(panels_)) {
  window_.reserve(kWindow);
}

void PartialHead::keep(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens)
    if (token >= 0 && token / kPanel < panels_) {
      uint16_t& uses = uses_[static_cast<size_t>(token / kPanel)];
      if (uses < kWindow) uses = static_cast<uint16_t>(uses + kWindow + 1);
    }
}

void PartialHead::record_panel(int64_t panel) {
  ++uses_[static_cast<size_t>(panel)];
  if (window_.size() < kWindow) return window_.push_back(static_cast<int32_t>(panel));
  --uses_[static_cast<size_t>(window_[oldest_])];
  window_[oldest_] = static_cast<int32_t>(panel);
  oldest_ = (oldest_ + 1) % kWindow;
}

void PartialHead::record(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens)
    if (token >= 0 && token / kPanel < panels_) record_panel(token / kPanel);
}

int64_t PartialHead::list(int64_t panels, std::vector<PanelRun>& runs) const {
  const int64_t first = std::min((first_ids_ + kPanel - 1) / kPanel, panels);
  int64_t count = first;
  runs.assign(1, {0, first, 0});
  for (int64_t panel = first; panel < std::min(panels_, panels); ++panel) {
    if (uses_[static_cast<size_t>(panel)] == 0) continue;
    if (runs.back().last != panel) runs.push_back({panel, panel, count});
    ++runs.back().last;
    ++count;
  }
  return count;
}

}  // namespace specqd
