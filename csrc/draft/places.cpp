#include "draft/places.h"

#include <algorithm>
#include <bit>

namespace specqd {
namespace {

constexpr double kPrior = 0.85;  // of a later token, before anything was seen: as of a level's
constexpr double kOwnPrior = 0.5;
constexpr double kMemory = 200.0;  // outcomes of a group of places after which older ones fade

}  // namespace

size_t place_group(size_t place) {
  return std::min<size_t>(static_cast<size_t>(std::bit_width(place + 1)) - 1, kPlaceGroups - 1);
}

PlaceAcceptance::PlaceAcceptance() {
  later_.fill(Calibration(kPrior, {}, false));
  for (Shares& shares : own_) shares.fill(Calibration(kOwnPrior));
}

double PlaceAcceptance::expected(size_t place, double confidence) const {
  const size_t group = place_group(place);
  return group == 0 ? first_.probability(confidence) : later_[group].probability(0.0);
}

double PlaceAcceptance::probability(size_t place, size_t share, double stated) const {
  return own_[place_group(place)][share].probability(stated);
}

void PlaceAcceptance::observe(size_t place, double confidence, size_t share, double stated,
                              bool is_accepted) {
  const size_t group = place_group(place);
  own_[group][share].observe(stated, is_accepted);
  if (group == 0)
    first_.observe(confidence, is_accepted);
  else
    later_[group].observe(0.0, is_accepted);
}

size_t NoiseChoice::best(size_t place) const {
  const auto& right = right_[place_group(place)];
  return static_cast<size_t>(std::ranges::max_element(right) - right.begin());
}

void NoiseChoice::observe(size_t place, const Outcome& is_right) {
  auto& right = right_[place_group(place)];
  for (size_t i = 0; i < right.size(); ++i)
    right[i] = (1.0 - 1.0 / kMemory) * right[i] + (is_right[i] ? 1.0 : 0.0);
}

}  // namespace specqd
