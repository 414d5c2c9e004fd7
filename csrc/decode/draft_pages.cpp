#include "decode/draft_pages.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "model/kv_cache.h"

namespace specqd {
namespace {

constexpr int64_t kNewest = 2;      // pages: the one of the draft's first row, and the one before
constexpr int64_t kMostOfMean = 2;  // times the mean number of earlier pages: the most of a strip

struct Candidate {
  float weight;
  int32_t page;
  int64_t strip;
  // If weights are equal, newer pages come first, and are divided evenly among the strips.
  bool operator<(const Candidate& other) const {
    return std::tuple(-weight, -page, strip) < std::tuple(-other.weight, -other.page, other.strip);
  }
};

// Moves the best `count` candidates, of as many or more, to the front.
void move_best(std::vector<Candidate>& candidates, int64_t count) {
  std::ranges::nth_element(candidates, candidates.begin() + count, std::less<>());
}

}  // namespace

void DraftPages::weigh(int64_t strips, std::vector<float> weights) {
  strips_ = strips;
  weights_ = std::move(weights);
  chosen_most_ = 0;
}

const PageChoice* DraftPages::choose(int64_t strips, int64_t start, int64_t most) {
  const int64_t recent = start / kPagePositions - kNewest + 1;
  if (most == 0 || strips == 0) return nullptr;
  most = std::max(most, kNewest + 1);  // one more is the first page
  if (recent + kNewest <= most) return nullptr;
  // A draft that grows into another page keeps its choice: it reads a page more.
  const bool holds =
      chosen_most_ == most && choice_.recent <= recent && recent <= choice_.recent + 1;
  if (holds) return &choice_;
  choose_best(strips, recent, most - kNewest);
  chosen_most_ = most;
  return &choice_;
}

// Chooses pages before `recent`, `mean` by strip on average: the first one of each strip, and those
// of most weight in all strips together.
void DraftPages::choose_best(int64_t strips, int64_t recent, int64_t mean) {
  const auto pages = strips_ == strips ? std::ssize(weights_) / strips : 0;
  const int64_t most = std::min(kMostOfMean * mean, recent - 1);
  std::vector<Candidate> best, of_strip;
  for (int64_t strip = 0; strip < strips; ++strip) {
    of_strip.clear();
    for (int64_t page = 1; page < recent; ++page) {
      const float weight =
          page < pages ? weights_[static_cast<size_t>(strip * pages + page)] : 0.0f;
      of_strip.push_back({weight, static_cast<int32_t>(page), strip});
    }
    move_best(of_strip, most - 1);
    best.insert(best.end(), of_strip.begin(), of_strip.begin() + (most - 1));
  }
  move_best(best, strips * (mean - 1));
  best.resize(static_cast<size_t>(strips * (mean - 1)));
  std::ranges::sort(best, {},
                    [](const Candidate& each) { return std::pair(each.strip, each.page); });

  choice_.recent = recent;
  choice_.most = 0;
  choice_.earlier.clear();
  choice_.ends.clear();
  auto next = best.begin();
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t before = std::ssize(choice_.earlier);
    choice_.earlier.push_back(0);
    for (; next != best.end() && next->strip == strip; ++next)
      choice_.earlier.push_back(next->page);
    choice_.ends.push_back(choice_.earlier.size());
    choice_.most = std::max(choice_.most, std::ssize(choice_.earlier) - before);
  }
}

}  // namespace specqd
