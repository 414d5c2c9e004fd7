#include "draft/drafter.h"

#include <algorithm>

namespace specqd {

double DraftRequest::verification_seconds(double count) const {
  if (costs == nullptr) return 0.0;
  const auto before = static_cast<double>(rows), sequences = static_cast<double>(sharing);
  return costs->seconds(before + sequences * std::max(count, 0.0)) / sequences;
}

std::vector<int32_t> Proposal::depths_of(std::span<const int32_t> verified) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < std::min(tokens.size(), verified.size()); ++i)
    if (tokens[i] == verified[i]) found.push_back(1 + (depths.empty() ? 0 : depths[i]));
  found.resize(verified.size(), 0);
  return found;
}

void Proposal::append(const Proposal& other) {
  depths.resize(other.depths.empty() ? depths.size() : tokens.size());
  tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
  confidences.insert(confidences.end(), other.confidences.begin(), other.confidences.end());
  depths.insert(depths.end(), other.depths.begin(), other.depths.end());
  if (!depths.empty()) depths.resize(tokens.size());
  reached *= other.reached;
}

void Proposal::cut(size_t length) {
  if (length >= tokens.size()) return;
  tokens.resize(length);
  confidences.resize(length);
  if (length < depths.size()) depths.resize(length);
}

}  // namespace specqd
