// The rows of the head that a draft reads, and whether leaving the others out pays. Knows token
// ids, panels and bytes; knows no weights and no text.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

// Panels [first, last) of a list of runs; `before` is how many panels the runs before it have.
struct PanelRun {
  int64_t first, last, before;
};

// Bytes that a draft's forward reads, and bytes of the forward that verifies it.
struct HeadCosts {
  double rest_bytes;    // of the draft's forward, without its head
  double panel_bytes;   // of one panel of its head
  int64_t panels;       // of its head
  double verify_bytes;  // of the forward that verifies
};

// A draft is only a proposal, so it need not read rows that are hardly ever picked. Ids of merges
// are ordered by frequency. The list holds the first ids, up to a chosen size, and for every size
// the ids that are always kept and those of recent text; each with the panel that it lies in.
//
// The loss of a size is counted without trying it: for each of the target's picks the smallest
// size that holds it is known. Its saving is known in bytes.
class PartialHead {
 public:
  // `vocabulary`: the target's, from which it picks.
  explicit PartialHead(int64_t vocabulary);

  void keep(std::span<const int32_t> tokens);  // always: special ones, which end texts
  void read(std::span<const int32_t> tokens);  // of a prompt
  // Counts the target's picks at a proposal's places. All but the last agree with the proposal.
  void picked(std::span<const int32_t> picks, std::span<const int32_t> proposal);

  // The number of first ids that a draft should read: that of the size with the most expected
  // tokens a byte, or all.
  int64_t ids_that_pay(const HeadCosts& costs) const;
  int64_t num_picks() const { return num_picks_; }

  // Lists the panels, in order, of the first `ids` and of the ids that are held anyway, of a head
  // of `panels`. Returns their number. The size becomes the current one.
  int64_t list(int64_t ids, int64_t panels, std::vector<PanelRun>& runs);

  // The estimated share of the target's picks that are neither among the first `ids` nor held
  // anyway. Exact for the sizes that it chooses from.
  double share_left_out(int64_t ids) const;

 private:
  static constexpr std::array<int, 5> kParts = {32, 16, 8, 4, 2};  // sizes: one 32nd of all, ...
  static constexpr size_t kSizes = kParts.size();

  int64_t panels_of(size_t size) const { return (panels_ + kParts[size] - 1) / kParts[size]; }
  bool is_held(int64_t panel) const { return uses_[static_cast<size_t>(panel)] > 0; }
  size_t size_that_holds(int64_t panel) const;
  void see(int64_t panel);
  void count(size_t size, bool is_place, bool is_confirmed);
  double left_out(size_t size) const;

  int64_t panels_;
  std::vector<uint16_t> uses_;   // of each panel in the window, and by what is always kept
  std::vector<int32_t> window_;  // panels of the text's last tokens, a ring
  size_t oldest_ = 0;            // of the window, once it is full
  int64_t num_picks_ = 0;
  int64_t in_force_;                       // of the first panels, what drafts read last
  std::array<double, kSizes + 1> needed_;  // picks by the smallest size that held them; or all
  double counted_;                         // their sum
  double places_, confirmed_;              // proposed where the pick was in the list; and right
};

}  // namespace specqd
