#include "draft/level_reading.h"

#include <algorithm>

namespace specqd {
namespace {

// A drafter that has a prompt to read reads it in parts of so many seconds, one a round.
constexpr double kReadingSeconds = 0.25;
// Tokens of a part: fewer would read the weights too often; the first part of an unmeasured level.
constexpr int64_t kLeastTokens = 16, kFirstTokens = 64;

// Whether one sequence may adopt the first page of the other.
bool begin_alike(const Sequence& a, const Sequence& b) {
  const auto page = static_cast<size_t>(kPagePositions);
  return a.reuses_prefixes && b.reuses_prefixes && a.cache_salt == b.cache_salt &&
         std::min(a.tokens.size(), b.tokens.size()) > page &&
         std::equal(a.tokens.begin(), a.tokens.begin() + kPagePositions, b.tokens.begin());
}

}  // namespace

int64_t LevelReading::num_unread(const std::shared_ptr<Sequence>& sequence) const {
  return std::ssize(sequence->tokens) - 1 - start_of(*sequence, *model_.context(sequence));
}

// The last token is always read again: its logits are needed.
int64_t LevelReading::start_of(const Sequence& sequence, Context& context) const {
  const size_t held = context.match(sequence.tokens, sequence.num_accepted());
  return static_cast<int64_t>(
      model_.resumable(context, std::min(held, sequence.tokens.size() - 1)));
}

int64_t LevelReading::lag(const Sequence& sequence, Context& context) const {
  return std::ssize(sequence.tokens) - 1 - start_of(sequence, context);
}

int64_t LevelReading::tokens_within(double seconds, int64_t position) const {
  const int64_t within = costs_.tokens_within(seconds, position).value_or(kFirstTokens);
  return std::min(std::max(within, kLeastTokens), model_.max_rows());
}

// A prompt that this level has not read yet, or a text that others have drafted, must not delay its
// verifier: until it is read in parts, nothing is proposed.
void LevelReading::limit(std::span<DraftRequest> requests) const {
  const double seconds = kReadingSeconds / static_cast<double>(requests.size());
  for (DraftRequest& request : requests) {
    const Sequence& sequence = *request.sequence;
    const int64_t start = start_of(sequence, *model_.context(request.sequence));
    if (std::ssize(sequence.tokens) - 1 - start > kLongestProposal)
      request.reads = tokens_within(seconds, start);
  }
}

void drop_waiting(std::vector<Draft*>& drafts) {
  const auto reads_prompt = [](const Draft* draft) { return draft->lag > kPagePositions; };
  const auto has_begun = [](const Draft* draft) {
    return draft->lag < std::ssize(draft->request.sequence->tokens) - 1;
  };
  std::vector<const Sequence*> readers;
  for (const Draft* draft : drafts)
    if (reads_prompt(draft) && has_begun(draft)) readers.push_back(draft->request.sequence.get());
  std::erase_if(drafts, [&](const Draft* draft) {
    if (!reads_prompt(draft) || has_begun(draft)) return false;
    const Sequence& own = *draft->request.sequence;
    const bool waits = std::ranges::any_of(
        readers, [&](const Sequence* other) { return begin_alike(own, *other); });
    if (!waits) readers.push_back(&own);
    return waits;
  });
}

}  // namespace specqd
