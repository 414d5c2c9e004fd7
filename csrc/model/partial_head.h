// Chooses the rows of the output head that a draft reads. This file knows token ids and panels, but
// no weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

// Panels [first, last) in a list of runs. The runs before it have `before` panels in all.
struct PanelRun {
  int64_t first, last, before;
};

// A draft is only a proposal, so it can skip rows whose tokens are hardly ever sampled.
// Vocabularies of merges are ordered by frequency. So a draft reads the panels of the first ids, of
// the ids that are always kept, and of the ids in recent text.
class PartialHead {
 public:
  // `vocabulary`: the number of tokens that the target can sample.
  explicit PartialHead(int64_t vocabulary);

  void set_first_ids(int64_t ids) { first_ids_ = ids; }
  // Always reads these ids, such as the special tokens that end a text.
  void keep(std::span<const int32_t> tokens);
  // Records tokens that the target has read or sampled.
  void record(std::span<const int32_t> tokens);

  // Lists the panels to read, in order, of an output head of `panels`. Returns their number.
  int64_t list(int64_t panels, std::vector<PanelRun>& runs) const;

 private:
  void record_panel(int64_t panel);

  int64_t panels_;
  int64_t first_ids_;
  std::vector<uint16_t> uses_;   // of each panel: in the window, plus more if it is always kept
  std::vector<int32_t> window_;  // the panels of the last recorded tokens, a ring
  size_t oldest_ = 0;            // index into the window, once it is full
};

}  // namespace specqd
