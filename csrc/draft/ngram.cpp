#include "draft/ngram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specqd {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kEnd = -1;
constexpr size_t kFirstSlots = 512;  // of a table: enough for most chats
constexpr float kDoubt = 2.0f;  // the weight of two places that match by one token and disagree

// Weight of a place by the length of its match.
const std::array<float, kLongestMatch + 1> kWeights = [] {
  std::array<float, kLongestMatch + 1> weights{};
  for (int length = 1; length <= kLongestMatch; ++length) {
    const auto n = static_cast<float>(length);
    weights[static_cast<size_t>(length)] = n * std::sqrt(n);
  }
  return weights;
}();

// Hashes of the grams of these lengths, one within the other, that a sequence ends with.
template <size_t N>
std::array<uint64_t, N> hashes(std::span<const int32_t> ending, const std::array<int, N>& lengths) {
  std::array<uint64_t, N> all{};
  uint64_t sum = 0;
  size_t at = 0;
  for (size_t i = 0; i < N && static_cast<size_t>(lengths[i]) <= ending.size(); ++i) {
    for (; at < static_cast<size_t>(lengths[i]); ++at)
      sum = (sum ^ static_cast<uint32_t>(ending[at])) * 0x9e3779b97f4a7c15ull + (sum >> 29);
    all[i] = sum ^ (sum >> 32);
  }
  return all;
}

}  // namespace

void NgramIndex::append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (text_length_ > 0) index_place(static_cast<int32_t>(tokens_.size()) - 1);
    tokens_.push_back(token);
    ++text_length_;
  }
}

void NgramIndex::end_text() {
  tokens_.push_back(kEnd);
  text_length_ = 0;
}

size_t NgramIndex::bytes() const {
  size_t count = tokens_.capacity();
  count += previous_.capacity() * kGramLengths.size();
  for (const Table& table : tables_) count += table.latest.capacity();
  return count * sizeof(int32_t);
}

// Enters the grams that end at the position, all within the present sequence.
void NgramIndex::index_place(int32_t position) {
  const Ending ending = ending_at(position, kGramLengths.back());
  const auto hashes = specqd::hashes(ending.all(), kGramLengths);
  std::array<int32_t, kGramLengths.size()> none;
  none.fill(kNone);
  previous_.resize(static_cast<size_t>(position) + 1, none);
  for (size_t i = 0; i < tables_.size(); ++i) {
    Table& table = tables_[i];
    if (text_length_ < static_cast<size_t>(kGramLengths[i])) break;
    if (4 * (table.grams + 1) > 3 * table.latest.size()) grow(table, kGramLengths[i]);
    int32_t& latest = table.latest[slot(table, hashes[i], ending.last(kGramLengths[i]))];
    table.grams += latest == kNone;
    previous_.back()[i] = latest;
    latest = position;
  }
}

void NgramIndex::grow(Table& table, int length) {
  std::vector<int32_t> old(std::max(kFirstSlots, 2 * table.latest.size()), kNone);
  old.swap(table.latest);
  for (const int32_t position : old) {
    if (position == kNone) continue;
    const Ending gram = ending_at(position, length);
    const uint64_t hash = hashes(gram.all(), std::array{length})[0];
    table.latest[slot(table, hash, gram.all())] = position;
  }
}

// Where the latest place of a gram is, or would be.
size_t NgramIndex::slot(const Table& table, uint64_t hash, std::span<const int32_t> gram) const {
  const size_t mask = table.latest.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const int32_t position = table.latest[at];
    if (position == kNone) return at;
    const int32_t* last = tokens_.data() + position;
    size_t equal = 0;
    while (equal < gram.size() && *(last - equal) == gram[equal]) ++equal;
    if (equal == gram.size()) return at;
  }
}

NgramIndex::Ending NgramIndex::ending_at(int32_t position, int length) const {
  Ending ending;
  ending.length = std::min(length, position + 1);
  for (int i = 0; i < ending.length; ++i)
    ending.tokens[static_cast<size_t>(i)] = tokens_[static_cast<size_t>(position - i)];
  return ending;
}

NgramIndex::Ending NgramIndex::ending_with(std::span<const int32_t> guesses) const {
  Ending ending;
  const size_t most = std::min<size_t>(kLongestMatch, guesses.size() + text_length_);
  for (; static_cast<size_t>(ending.length) < most; ++ending.length) {
    const auto back = static_cast<size_t>(ending.length) + 1;
    ending.tokens[back - 1] = back <= guesses.size()
                                  ? guesses[guesses.size() - back]
                                  : tokens_[tokens_.size() + guesses.size() - back];
  }
  return ending;
}

int NgramIndex::match(int32_t position, const Ending& ending) const {
  const int most = std::min(ending.length, position + 1);
  int length = 0;
  while (length < most && tokens_[static_cast<size_t>(position - length)] ==
                              ending.tokens[static_cast<size_t>(length)])
    ++length;
  return length;
}

// The longest match first, of equals the latest.
NgramIndex::Places NgramIndex::places(const Ending& ending) const {
  Places places;
  const auto hashes = specqd::hashes(ending.all(), kGramLengths);
  int all_known = kLongestMatch + 1;  // every place with a match this long is among them
  for (size_t i = tables_.size(); i-- > 0 && places.count < kMostPlaces;) {
    const Table& table = tables_[i];
    if (ending.length < kGramLengths[i] || table.grams == 0) continue;
    int32_t position = table.latest[slot(table, hashes[i], ending.last(kGramLengths[i]))];
    while (position != kNone && places.count < kMostPlaces) {
      const int length = match(position, ending);
      if (length < all_known) places.all[static_cast<size_t>(places.count++)] = {position, length};
      position = previous_[static_cast<size_t>(position)][i];
    }
    all_known = kGramLengths[i];
  }
  std::sort(places.all.begin(), places.all.begin() + places.count, [](Place a, Place b) {
    return a.match != b.match ? a.match > b.match : a.position > b.position;
  });
  return places;
}

// `after` is what follows the tokens of this index.
ScoredTokens NgramIndex::follow(Places places, std::vector<int32_t> after, Limits limits) const {
  ScoredTokens proposed;
  const std::span<Place> all(places.all.data(), static_cast<size_t>(places.count));
  const auto size = static_cast<int32_t>(tokens_.size());
  const auto next = [&](const Place& place) {
    const int32_t position = place.position + 1;
    if (position < size) return tokens_[static_cast<size_t>(position)];
    const auto further = static_cast<size_t>(position - size);
    return further < after.size() ? after[further] : kEnd;
  };
  size_t count = all.size();
  double likely = 1.0;
  if (count > 0) {
    proposed.tokens.reserve(limits.tokens);
    proposed.probabilities.reserve(limits.tokens);
  }
  while (count > 0 && proposed.tokens.size() < limits.tokens && likely >= limits.likely) {
    const int32_t token = next(all[0]);
    if (token == kEnd) break;
    float weight = kDoubt, agreeing = 0.0f;
    size_t kept = 0;
    for (const Place& place : all.first(count)) {
      const float own = kWeights[static_cast<size_t>(place.match)];
      weight += own;
      if (next(place) != token) continue;
      agreeing += own;
      all[kept++] = {place.position + 1, std::min(place.match + 1, kLongestMatch)};
    }
    count = kept;
    proposed.tokens.push_back(token);
    proposed.probabilities.push_back(agreeing / weight);
    likely *= proposed.probabilities.back();
    after.push_back(token);
  }
  return proposed;
}

ScoredTokens NgramIndex::propose(std::span<const int32_t> guesses, Limits limits,
                                 const NgramIndex* corpus) const {
  const Ending ending = ending_with(guesses);
  const Places own = places(ending);
  if (corpus != nullptr && (own.count == 0 || own.all[0].match < kLongestMatch)) {
    const Places other = corpus->places(ending);
    if (other.count > 0 && (own.count == 0 || other.all[0].match > own.all[0].match))
      return corpus->follow(other, {}, limits);
  }
  std::vector<int32_t> after;
  if (own.count > 0) {
    after.reserve(guesses.size() + limits.tokens);
    after.assign(guesses.begin(), guesses.end());
  }
  return follow(own, std::move(after), limits);
}

}  // namespace specqd
