#include "decode/draft_pages.h"

#include <algorithm>
#include <span>
#include <utility>

#include "model/kv_cache.h"

namespace specqd {
namespace {

constexpr int64_t kNewest = 2;  // pages: the one of the draft's first row, and the one before

// Writes the first page and those of most weight, in order. If weights are equal, newer pages win.
void choose_best(std::span<const float> weights, std::span<int32_t> chosen, int64_t end) {
  std::vector<int32_t> pages;
  for (auto page = static_cast<int32_t>(end) - 1; page > 0; --page) pages.push_back(page);
  const auto weight = [&](int32_t page) {
    const auto at = static_cast<size_t>(page);
    return at < weights.size() ? weights[at] : 0.0f;
  };
  const auto count = std::ssize(chosen) - 1;
  std::ranges::nth_element(pages, pages.begin() + count, [&](int32_t a, int32_t b) {
    return weight(a) > weight(b) || (weight(a) == weight(b) && a > b);
  });
  chosen[0] = 0;
  std::ranges::copy_n(pages.begin(), count, chosen.begin() + 1);
  std::ranges::sort(chosen);
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
  choice_.recent = recent;
  choice_.count = most - kNewest;
  choice_.earlier.resize(static_cast<size_t>(strips * choice_.count));
  const size_t pages = strips_ == strips ? weights_.size() / static_cast<size_t>(strips) : 0;
  for (int64_t strip = 0; strip < strips; ++strip)
    choose_best(std::span(weights_).subspan(static_cast<size_t>(strip) * pages, pages),
                std::span(choice_.earlier)
                    .subspan(static_cast<size_t>(strip * choice_.count),
                             static_cast<size_t>(choice_.count)),
                recent);
  chosen_most_ = most;
  return &choice_;
}

}  // namespace specqd
