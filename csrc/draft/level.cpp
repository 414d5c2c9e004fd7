#include "draft/level.h"

#include <algorithm>
#include <cmath>

#include "draft/measure.h"

namespace specqd {
namespace {

constexpr double kRecent = 0.1;          // weight of the newest text in the usual length
constexpr int64_t kComparedTokens = 10;  // the most by which a choice compares its drafters

}  // namespace

void LevelStats::count(size_t drafted_now, size_t accepted_now) {
  drafted += static_cast<int64_t>(drafted_now);
  accepted += static_cast<int64_t>(accepted_now);
  if (drafted_now > drafted_at.size()) {
    drafted_at.resize(drafted_now);
    accepted_at.resize(drafted_now);
  }
  for (size_t place = 0; place < drafted_now; ++place) ++drafted_at[place];
  for (size_t place = 0; place < accepted_now; ++place) ++accepted_at[place];
}

Level::Level(LevelModel& model, Drafter& drafter, std::optional<int64_t> length, Clock clock)
    : model_(model),
      drafter_(&drafter),
      length_(length),
      clock_(std::move(clock)),
      reading_(model, costs_),
      policy_(costs_.forwards) {}

void Level::release(const std::shared_ptr<Sequence>& sequence) {
  const auto made = static_cast<double>(std::ssize(sequence->tokens) - sequence->prompt_length);
  // A level that stands in two places hears of the end twice; the first time it knows the sequence.
  if (known_.erase(sequence->key) > 0) {
    if (!sequence->is_preempted) {
      costs_.end_text();
      usual_tokens_ += kRecent * (made - usual_tokens_);
    }
    model_.publish(sequence);
  }
  drafter_->release(sequence);
  model_.release(sequence);
}

void Level::measure() {
  if (is_measured_) return;  // as it stands in another place too
  is_measured_ = true;
  costs_.begin(measured_costs(model_, clock_));
  policy_.begin();
  drafter_->measure();
}

// --- As a drafter --------------------------------------------------------------------------------

std::vector<Proposal> Level::propose(std::span<const DraftRequest> requests) {
  for (const DraftRequest& request : requests)
    if (request.at_most > 0 && request.token_value_s < kAlwaysDraft) {
      ++stats.asked;
      stats.token_value_seconds += request.token_value_s;
    }
  if (!length_) policy_.pass(requests);
  std::vector<Draft> drafts;
  drafts.reserve(requests.size());
  for (const DraftRequest& request : requests) {
    drafts.emplace_back(request, longest(request));
    const std::shared_ptr<Context> context = model_.context(request.sequence);
    context->begin(request.sequence->tokens.size());
    drafts.back().lag = reading_.lag(*request.sequence, *context);
  }
  return propose_in_rounds(std::move(drafts), [this](std::span<Draft* const> all) {
    std::vector<Draft*> going =
        length_ ? std::vector(all.begin(), all.end()) : policy_.select(priced(all));
    drop_waiting(going);
    if (going.empty()) return;
    try {
      extend(going);
    } catch (const CacheFull&) {
      // A draft is not required: the proposals made so far are kept.
    }
  });
}

std::vector<Value> Level::values(std::span<const DraftRequest> requests) {
  std::vector<Draft> drafts;
  drafts.reserve(requests.size());
  std::vector<Draft*> all;
  for (const DraftRequest& request : requests) {
    drafts.emplace_back(request, longest(request));
    drafts.back().lag = reading_.lag(*request.sequence, *model_.context(request.sequence));
    all.push_back(&drafts.back());
  }
  std::vector<Value> values;
  values.reserve(requests.size());
  for (const Priced& each : priced(all))
    values.push_back(each.draft->request.token_value_s == kAlwaysDraft
                         ? Value{}
                         : policy_.value_of_rest(each, kComparedTokens));
  return values;
}

// A level whose drafter saves it s seconds by t tokens makes 1 + t in the time of a forward and t
// tokens, less s.
std::vector<Priced> Level::priced(std::span<Draft* const> drafts) {
  const size_t count = drafts.size();
  const double forward_s = policy_.forward_share(count);
  const double own_s = std::min(costs_.seconds_per_token(count), forward_s);
  std::vector<Value> saved(count);
  if (!drafter_->is_silent()) {
    std::vector<DraftRequest> requests;
    requests.reserve(count);
    for (const DraftRequest& rest : rests_of(drafts)) {
      requests.push_back(below(rest, count));
      requests.back().token_value_s = std::min(own_s, rest.token_value_s);
    }
    saved = drafter_->values(requests);
    for (size_t i = 0; i < count; ++i)
      saved[i].saved_s = requests[i].token_value_s * saved[i].tokens - saved[i].saved_s;
  }
  std::vector<Priced> priced;
  priced.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const Sequence& sequence = *drafts[i]->request.sequence;
    const auto lag = static_cast<double>(drafts[i]->lag);
    const auto made = static_cast<double>(std::ssize(sequence.tokens) - sequence.prompt_length);
    const double left = std::max(usual_tokens_ - made, made);
    // A drafter that continues others' proposals adds about a token each time, and must catch up
    // again the next time.
    const double over = drafts[i]->request.is_first()
                            ? std::min(lag, left) / std::max(costs_.lag_per_token(), 1.0)
                            : 1.0;
    priced.push_back({drafts[i], (forward_s + saved[i].saved_s) / (1.0 + saved[i].tokens),
                      costs_.catch_up_seconds(drafts[i]->lag, std::ssize(sequence.tokens), count),
                      std::max(over, 1.0)});
  }
  return priced;
}

int64_t Level::longest(const DraftRequest& request) {
  model_.adopt_prefix(request.sequence);  // others may have published pages since the last time
  if (!knows(*request.sequence)) return 0;
  const int64_t room = model_.max_positions() - std::ssize(request.sequence->tokens);
  return std::min({request.at_most, length_.value_or(kLongestProposal), room});
}

bool Level::knows(const Sequence& sequence) {
  size_t& known = known_[sequence.key];
  const auto first = sequence.tokens.begin() + static_cast<std::ptrdiff_t>(known);
  const auto unknown = std::find_if(first, sequence.tokens.end(),
                                    [this](int32_t token) { return token >= model_.vocabulary(); });
  const auto count = static_cast<size_t>(unknown - sequence.tokens.begin());
  known = std::min(count, sequence.num_accepted());  // guesses may yet change
  return unknown == sequence.tokens.end();
}

// A round: extends each draft by the tokens that this level makes in one forward.
void Level::extend(std::span<Draft* const> drafts) {
  const double begun = clock_();
  size_t made = 0;
  int64_t caught_up = 0;
  std::vector<DraftRequest> requests = rests_of(drafts);
  reading_.limit(requests);
  std::vector<Proposal> steps = advance(requests);
  for (size_t i = 0; i < drafts.size(); ++i) {
    made += steps[i].tokens.size();
    // A longer lag is a prompt, or a pause after which it may draft alone.
    if (drafts[i]->lag <= kLongestProposal) caught_up += drafts[i]->lag;
    drafts[i]->lag = steps[i].is_empty() ? reading_.lag(*requests[i].sequence,
                                                        *model_.context(requests[i].sequence))
                                         : 0;
    steps[i].reached = 1.0;
    for (const double stated : steps[i].confidences)
      steps[i].reached *= policy_.acceptance.own.probability(stated);
    drafts[i]->add(std::move(steps[i]));
  }
  costs_.add_draft(caught_up, made);
  policy_.charge(drafts, made, clock_() - begun);
}

void Level::observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) {
  if (const int64_t tried = static_cast<int64_t>(accepted) - proposal.probe_from; tried > 0)
    policy_.refund(static_cast<double>(tried) * request.token_value_s);
  AcceptanceModel& model = policy_.acceptance;
  double before = request.confidence;
  for (size_t i = 0; i < std::min(proposal.confidences.size(), accepted + 1); ++i) {
    model.own.observe(proposal.confidences[i], i < accepted);
    model.next.observe(before, i < accepted);
    before = proposal.confidences[i];
  }
}

// --- As a verifier -------------------------------------------------------------------------------

std::vector<Proposal> Level::advance(std::span<const DraftRequest> requests) {
  const double begun = clock_();
  const std::vector<Reading> readings = readings_of(requests);
  const std::vector<DraftRequest> draft_requests = this->draft_requests(requests, readings);
  const bool is_drafted =
      !drafter_->is_silent() && std::ranges::any_of(requests, [](const DraftRequest& request) {
        return request.at_most > 1;
      });
  std::vector<Proposal> proposals =
      is_drafted ? drafter_->propose(draft_requests) : std::vector<Proposal>(requests.size());
  for (Proposal& proposal : proposals) keep_known(proposal);
  const std::vector<Rows> batch = rows_of(requests, readings, proposals);
  int64_t num_rows = 0;
  for (const Rows& rows : batch) num_rows += std::ssize(rows.tokens);
  const size_t read = model_.bytes_read(), cache_read = model_.cache_bytes_read();
  const size_t whole_cache = model_.whole_cache_bytes();
  const double drafted = clock_();
  model_.forward(batch);
  const double forwarded = clock_();
  std::vector<Proposal> results = verify(requests, readings, proposals);
  const double sampled = clock_();
  observe(draft_requests, readings, proposals, results);
  ++stats.forwards;
  stats.rows += num_rows;
  stats.seconds += forwarded - drafted;
  stats.pick_seconds += sampled - forwarded;
  stats.bytes_read += model_.bytes_read() - read;
  stats.cache_bytes_read += model_.cache_bytes_read() - cache_read;
  stats.whole_cache_bytes += model_.whole_cache_bytes() - whole_cache;
  learn(readings, num_rows, clock_() - drafted);
  if (std::ranges::none_of(readings, &Reading::is_prompt)) {
    size_t made = 0;
    for (const Proposal& result : results) made += result.tokens.size();
    costs_.add_round(requests.size(), made, clock_() - begun);
  }
  share_prompts(requests, readings);
  return results;
}

// Lets the drafter follow the prompts that the forward read. A drafter also publishes those that
// were read to their end; the engine does that for the target.
void Level::share_prompts(std::span<const DraftRequest> requests,
                          std::span<const Reading> readings) {
  std::vector<std::shared_ptr<Sequence>> read;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!readings[i].is_prompt) continue;
    const auto& sequence = requests[i].sequence;
    read.push_back(sequence);
    if (readings[i].is_last && known_.contains(sequence->key)) model_.publish(sequence);
  }
  if (!read.empty()) drafter_->follow(read);
}

// The features of a model that shares its context with the verifier are the verifier's.
void Level::follow(std::span<const std::shared_ptr<Sequence>> sequences) {
  if (drafter_->is_silent()) return;
  for (const auto& sequence : sequences) model_.context(sequence);
  drafter_->follow(sequences);
}

std::vector<Level::Reading> Level::readings_of(std::span<const DraftRequest> requests) {
  std::vector<Reading> readings;
  readings.reserve(requests.size());
  for (const DraftRequest& request : requests) {
    const Sequence& sequence = *request.sequence;
    std::shared_ptr<Context> context = model_.context(request.sequence);
    const int64_t start = reading_.start_of(sequence, *context);
    const int64_t all = std::ssize(sequence.tokens), unread = all - 1 - start;
    const bool is_last = request.reads >= unread;
    const bool is_prompt =
        !is_last || start < sequence.prompt_length - 1 || unread > kLongestProposal;
    readings.push_back(
        {std::move(context), start, is_last ? all : start + request.reads, is_last, is_prompt});
  }
  return readings;
}

// What the forward reads, and which of it needs logits: the scored tokens, the last one, and those
// proposed.
std::vector<Rows> Level::rows_of(std::span<const DraftRequest> requests,
                                 std::span<const Reading> readings,
                                 std::span<const Proposal> proposals) const {
  std::vector<Rows> batch;
  batch.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Reading& reading = readings[i];
    const std::vector<int32_t>& proposed = proposals[i].tokens;
    const auto tokens = requests[i].sequence->tokens.begin();
    Rows rows{
        reading.context,
        static_cast<size_t>(reading.start),
        {},
        static_cast<size_t>(requests[i].scores) + (reading.is_last ? proposed.size() + 1 : 0)};
    rows.tokens.reserve(static_cast<size_t>(reading.end - reading.start) + proposed.size());
    rows.tokens.assign(tokens + reading.start, tokens + reading.end);
    rows.tokens.insert(rows.tokens.end(), proposed.begin(), proposed.end());
    batch.push_back(std::move(rows));
  }
  return batch;
}

// Learns what the forward took. Few rows of a prompt cost what the same rows of a proposal do.
void Level::learn(std::span<const Reading> readings, int64_t rows, double seconds) {
  if (rows <= kLongestProposal || std::ranges::none_of(readings, &Reading::is_prompt)) {
    costs_.forwards.of(readings.size())->add(rows, seconds);
    return;
  }
  double positions = 0.0;
  for (const Reading& reading : readings)
    positions += static_cast<double>(reading.end - reading.start) *
                 static_cast<double>(reading.start + reading.end) / 2.0;
  costs_.add_reading(rows, positions, seconds);
}

// The requests to the drafter. None is made for a prompt that is not read yet.
std::vector<DraftRequest> Level::draft_requests(std::span<const DraftRequest> requests,
                                                std::span<const Reading> readings) {
  const size_t count = requests.size();
  const double token_value_s = costs_.seconds_per_token(count);
  int64_t scored = 0;
  for (const DraftRequest& request : requests) scored += request.scores;
  std::vector<DraftRequest> draft_requests;
  draft_requests.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t start = readings[i].start;
    const bool has_prompt =
        readings[i].is_last && start > 0 && start >= requests[i].sequence->prompt_length - 1;
    draft_requests.push_back(below(requests[i], count, scored));
    DraftRequest& request = draft_requests.back();
    if (!has_prompt) request.at_most = 0;
    request.token_value_s = std::min(token_value_s, request.token_value_s);
  }
  return draft_requests;
}

DraftRequest Level::below(DraftRequest request, size_t count, int64_t scored) {
  const auto sharing = static_cast<int64_t>(count);
  request.at_most = std::min(request.at_most, (model_.max_rows() - scored) / sharing) - 1;
  request.costs = costs_.forwards.of(count);
  request.rows = request.sharing = sharing;
  request.reads = kAllTokens;
  request.scores = 0;
  return request;
}

// Cuts a proposal before the first token that this model does not have: vocabularies of one
// tokenizer may be padded to different sizes.
void Level::keep_known(Proposal& proposal) const {
  const auto unknown = std::find_if(proposal.tokens.begin(), proposal.tokens.end(),
                                    [this](int32_t token) { return token >= model_.vocabulary(); });
  proposal.cut(static_cast<size_t>(unknown - proposal.tokens.begin()));
}

// Samples from the forward's logits, and so turns what was proposed into proposals of this level.
std::vector<Proposal> Level::verify(std::span<const DraftRequest> requests,
                                    std::span<const Reading> readings,
                                    std::span<const Proposal> proposals) {
  std::vector<Proposal> results;
  results.reserve(requests.size());
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    row += requests[i].scores;
    Proposal& result = results.emplace_back();
    result.row = row;
    if (!readings[i].is_last) continue;
    auto [tokens, probabilities] = model_.verify(row, proposals[i].tokens, requests[i].sequence);
    result.drafted = std::ssize(proposals[i].tokens);
    result.accepted = std::ranges::mismatch(tokens, proposals[i].tokens).in1 - tokens.begin();
    result.depths = proposals[i].depths_of(tokens);
    result.tokens = std::move(tokens);
    result.confidences = std::move(probabilities);
    row += result.drafted + 1;
  }
  return results;
}

// Forgets what was rejected, and lets the drafter learn from it.
void Level::observe(std::span<const DraftRequest> requests, std::span<const Reading> readings,
                    std::span<const Proposal> proposals, std::span<const Proposal> results) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto drafted = static_cast<size_t>(results[i].drafted);
    if (drafted == 0) continue;
    const auto accepted = static_cast<size_t>(results[i].accepted);
    readings[i].context->record(requests[i].sequence->tokens.size() + accepted, {});
    stats.count(drafted, accepted);
    drafter_->observe(requests[i], proposals[i], accepted);
  }
}

}  // namespace specqd
