// The rows of the head that a draft reads. Knows token ids and panels; knows no weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

// Panels [first, last) of a list of runs; `before` is how many panels the runs before it have.
struct PanelRun {
  int64_t first, last, before;
};

// A draft is only a proposal, so it need not read rows that are hardly ever picked. Ids of merges
// are ordered by frequency. A draft reads the first ids, those that are always kept, and those of
// recent text; each with the panel that it lies in.
class PartialHead {
 public:
  // `vocabulary`: the target's, from which it picks.
  explicit PartialHead(int64_t vocabulary);

  void set_first_ids(int64_t ids) { first_ids_ = ids; }
  void keep(std::span<const int32_t> tokens);    // always: special ones, which end texts
  void record(std::span<const int32_t> tokens);  // read or picked by the target

  // Lists the panels to read, in order, of a head of `panels`. Returns their number.
  int64_t list(int64_t panels, std::vector<PanelRun>& runs) const;

 private:
  void record_panel(int64_t panel);

  int64_t panels_;
  int64_t first_ids_;
  std::vector<uint16_t> uses_;   // of each panel in the window, and by what is always kept
  std::vector<int32_t> window_;  // panels of the last tokens seen, a ring
  size_t oldest_ = 0;            // of the window, once it is full
};

}  // namespace specqd
