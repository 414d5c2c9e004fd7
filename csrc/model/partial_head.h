// Which rows of the head a draft reads, and whether leaving the others out pays. Knows token ids,
// panels and bytes; knows no weights and no text.
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

// What a draft's forward reads, and what the forward that verifies it reads.
struct HeadCosts {
  double rest_bytes;    // of the draft's forward, without its head
  double panel_bytes;   // of one panel of its head
  int64_t panels;       // of its head
  double verify_bytes;  // of the forward that verifies
};

// A draft is only a proposal, so it need not read what is hardly ever picked. Ids of merges come in
// the order of their frequency: the list holds the first ids, up to a size that is chosen, and
// whatever the sizes, the ids that are always kept and those of the text of late; each with the
// panel that it lies in.
//
// What a size loses is counted, not tried: at each of the target's picks it is known which of the
// sizes hold it, whichever is in force. What it saves is known in bytes.
class PartialHead {
 public:
  // Of a target's vocabulary, as it picks from it.
  explicit PartialHead(int64_t vocabulary);

  void keep(std::span<const int32_t> tokens);  // always: special ones, which end texts
  void read(std::span<const int32_t> tokens);  // of a prompt
  // The target's picks at a proposal's places: they agree but for the last one, if there are fewer.
  void picked(std::span<const int32_t> picks, std::span<const int32_t> proposal);

  // How many of the first ids a draft is to read: those of the size that promises the most tokens a
  // byte, or all.
  int64_t ids_that_pay(const HeadCosts& costs) const;
  int64_t num_picks() const { return num_picks_; }

  // The panels, in order, of the first `ids` and of what is held besides; of a head of `panels`.
  // Returns how many. The size counts as the one in force.
  int64_t list(int64_t ids, int64_t panels, std::vector<PanelRun>& runs);

  // The share of the target's picks that the first `ids` and what is held besides leave out, as far
  // as it can tell: for the sizes that it chooses from.
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
