// The pages of a sequence that its drafts read. Knows positions and weights, but no tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "model/page_choice.h"

namespace specqd {

// A draft of a long context reads the first page, the newest pages, and those of the others to
// which the last verified rows paid most attention. A strip whose attention is spread over many
// pages reads more of them, and one that attends to few reads fewer. What a draft leaves out can
// only make its tokens worse, because verification reads everything.
class DraftPages {
 public:
  // Replaces the weights, [strips][pages]. Pages without a weight count as unattended.
  void weigh(int64_t strips, std::vector<float> weights);
  // Returns the pages to which the rows of a draft that begins at position `start` attend: `most`
  // by strip on average, and those that the draft adds; 0: all. Null: all pages. Valid until the
  // next call.
  const PageChoice* choose(int64_t strips, int64_t start, int64_t most);

 private:
  void choose_best(int64_t strips, int64_t recent, int64_t mean);

  int64_t strips_ = 0;
  std::vector<float> weights_;
  PageChoice choice_;
  int64_t chosen_most_ = 0;  // the number of pages that the choice was made for; 0: none was made
};

}  // namespace specqd
