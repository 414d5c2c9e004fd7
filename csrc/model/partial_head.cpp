#include "model/partial_head.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace specqd {
namespace {

constexpr size_t kWindow = 16384;  // tokens of late: a text's, or those of many
constexpr double kMemory = 512;    // picks, after which older ones fade
// Until picks say otherwise: what each size leaves out, and for how many picks that counts.
// Nothing need be tried to find out, so it is on the dark side.
constexpr std::array<double, 5> kLeftOutAtFirst = {0.20, 0.16, 0.12, 0.09, 0.06};
constexpr double kPicksAtFirst = 32;
constexpr double kAcceptanceAtFirst = 0.85, kPlacesAtFirst = 20;
constexpr double kMostAcceptance = 0.98;
constexpr double kLeastGain = 1.02;  // bytes are not all that a forward takes
constexpr int kLongest = 16;         // proposal that is reckoned with

// Tokens that a forward of the target makes, over its bytes and those of its draft's forwards, in
// units of the target's: at the best length of a proposal, of whose tokens that share is right.
double tokens_per_byte(double acceptance, double draft_bytes) {
  double most = 1.0, tokens = 1.0, chance = 1.0;
  for (int length = 1; length <= kLongest; ++length) {
    chance *= acceptance;
    tokens += chance;
    most = std::max(most, tokens / (1.0 + length * draft_bytes));
  }
  return most;
}

}  // namespace

PartialHead::PartialHead(int64_t vocabulary)
    : panels_((vocabulary + kPanel - 1) / kPanel),
      uses_(static_cast<size_t>(panels_)),
      in_force_(panels_),
      counted_(kPicksAtFirst),
      places_(kPlacesAtFirst),
      confirmed_(kPlacesAtFirst * kAcceptanceAtFirst) {
  window_.reserve(kWindow);
  double more = 1.0;
  for (size_t size = 0; size < kSizes; ++size) {
    needed_[size] = (more - kLeftOutAtFirst[size]) * kPicksAtFirst;
    more = kLeftOutAtFirst[size];
  }
  needed_[kSizes] = more * kPicksAtFirst;
}

void PartialHead::keep(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens)
    if (token >= 0 && token / kPanel < panels_) {
      uint16_t& uses = uses_[static_cast<size_t>(token / kPanel)];
      if (uses < kWindow) uses = static_cast<uint16_t>(uses + kWindow + 1);
    }
}

void PartialHead::see(int64_t panel) {
  ++uses_[static_cast<size_t>(panel)];
  if (window_.size() < kWindow) return window_.push_back(static_cast<int32_t>(panel));
  --uses_[static_cast<size_t>(window_[oldest_])];
  window_[oldest_] = static_cast<int32_t>(panel);
  oldest_ = (oldest_ + 1) % kWindow;
}

void PartialHead::read(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) see(token / kPanel);
}

size_t PartialHead::size_that_holds(int64_t panel) const {
  if (is_held(panel)) return 0;
  size_t size = 0;
  while (size < kSizes && panel >= panels_of(size)) ++size;
  return size;
}

void PartialHead::picked(std::span<const int32_t> picks, std::span<const int32_t> proposal) {
  for (size_t i = 0; i < picks.size(); ++i) {
    const int64_t panel = picks[i] / kPanel;
    const bool is_in_list = is_held(panel) || panel < in_force_;
    count(size_that_holds(panel), i < proposal.size() && is_in_list,
          i < proposal.size() && picks[i] == proposal[i]);
    see(panel);
  }
}

void PartialHead::count(size_t size, bool is_place, bool is_confirmed) {
  ++num_picks_;
  if (counted_ >= kMemory) {
    for (double& each : needed_) each *= 1.0 - 1.0 / kMemory;
    counted_ *= 1.0 - 1.0 / kMemory;
  }
  needed_[size] += 1.0;
  counted_ += 1.0;
  if (!is_place) return;
  if (places_ >= kMemory) {
    places_ *= 1.0 - 1.0 / kMemory;
    confirmed_ *= 1.0 - 1.0 / kMemory;
  }
  places_ += 1.0;
  confirmed_ += is_confirmed ? 1.0 : 0.0;
}

double PartialHead::left_out(size_t size) const {
  double more = 0.0;
  for (size_t larger = size + 1; larger <= kSizes; ++larger) more += needed_[larger];
  return more / counted_;
}

double PartialHead::share_left_out(int64_t ids) const {
  size_t size = 0;
  while (size < kSizes && panels_of(size) * kPanel < ids) ++size;
  return left_out(size);
}

int64_t PartialHead::ids_that_pay(const HeadCosts& costs) const {
  const auto draft_bytes = [&](int64_t panels) {
    return (costs.rest_bytes + costs.panel_bytes * static_cast<double>(panels)) /
           costs.verify_bytes;
  };
  const double right = std::min(confirmed_ / places_, kMostAcceptance);
  const double whole = tokens_per_byte(right, draft_bytes(costs.panels));
  double most = whole * kLeastGain;
  int64_t best = panels_;
  for (size_t size = 0; size < kSizes; ++size) {
    int64_t panels = panels_of(size);
    for (int64_t panel = panels; panel < panels_; ++panel) panels += is_held(panel) ? 1 : 0;
    const double tokens = tokens_per_byte(right * (1.0 - left_out(size)), draft_bytes(panels));
    if (tokens <= most) continue;
    most = tokens;
    best = panels_of(size);
  }
  return best * kPanel;
}

int64_t PartialHead::list(int64_t ids, int64_t panels, std::vector<PanelRun>& runs) {
  runs.clear();
  in_force_ = (std::min(ids, panels_ * kPanel) + kPanel - 1) / kPanel;
  const int64_t first = in_force_ < panels_ ? std::min(in_force_, panels) : panels;
  int64_t count = first;
  if (first > 0) runs.push_back({0, first, 0});
  for (int64_t panel = first; panel < std::min(panels_, panels); ++panel) {
    if (!is_held(panel)) continue;
    if (runs.empty() || runs.back().last != panel) runs.push_back({panel, panel, count});
    ++runs.back().last;
    ++count;
  }
  return count;
}

}  // namespace specqd
