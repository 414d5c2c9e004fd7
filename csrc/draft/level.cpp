#include "draft/level.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace specqd {
namespace {

constexpr std::array<int64_t, 5> kMeasuredRows{1, 2, 4, 9, 16};
constexpr int64_t kMostMeasuredRows = 48;  // measured once: batches draft at many rows
constexpr int kLeastMeasurements = 2, kMostMeasurements = 5;
constexpr double kMeasuringSeconds = 0.3;  // after which no further one is begun

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
      policy_(costs_) {}

void Level::release(const std::shared_ptr<Sequence>& sequence) {
  known_.erase(sequence->key);
  drafter_->release(sequence);
  model_.release(sequence);
}

void Level::measure() {
  const std::array<int32_t, 1> start{0};
  const auto sequence = std::make_shared<Sequence>(start, std::make_shared<Sampler>(), 1);
  const auto context = model_.context(sequence);
  context->begin(0);
  const int64_t most = std::min(model_.max_positions(), model_.max_rows());
  MeasuredCosts least;
  const auto take = [&](int64_t rows) {
    const double seconds = forward_seconds(context, rows);
    const auto [at, is_first] = least.try_emplace(rows, seconds);
    if (!is_first) at->second = std::min(at->second, seconds);
  };
  const double begun = clock_();
  for (int i = 0; i < kMostMeasurements; ++i) {  // interleaved: what slows one slows all
    if (i >= kLeastMeasurements && clock_() - begun > kMeasuringSeconds) break;
    if (i == 1 && most >= kMostMeasuredRows) take(kMostMeasuredRows);
    for (const int64_t rows : kMeasuredRows)
      if (rows <= most) take(rows);
  }
  costs_.begin(least);
  policy_.begin();
  model_.release(sequence);
  drafter_->measure();
}

double Level::forward_seconds(const std::shared_ptr<Context>& context, int64_t rows) {
  const double begun = clock_();
  Rows batch{context, 0, {}, static_cast<size_t>(rows)};
  for (int64_t token = 0; token < rows; ++token)  // different ones may choose different experts
    batch.tokens.push_back(static_cast<int32_t>(token % model_.vocabulary()));
  model_.forward({&batch, 1});
  return clock_() - begun;
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
    drafts.back().lag = lag(*request.sequence, *context);
  }
  return propose_in_rounds(std::move(drafts), [this](std::span<Draft* const> all) {
    const std::vector<Draft*> going =
        length_ ? std::vector(all.begin(), all.end()) : policy_.select(all);
    if (going.empty()) return;
    try {
      extend(going);
    } catch (const CacheFull&) {
      // A draft is not required: the proposals made so far are kept.
    }
  });
}

std::vector<double> Level::values(std::span<const DraftRequest> requests) {
  std::vector<double> values;
  values.reserve(requests.size());
  for (const DraftRequest& request : requests)
    values.push_back(
        request.token_value_s == kAlwaysDraft
            ? 0.0
            : policy_.value_of_rest(Draft(request, longest(request)), requests.size()));
  return values;
}

int64_t Level::longest(const DraftRequest& request) {
  if (!knows(*request.sequence)) return 0;
  const int64_t room = model_.max_positions() - std::ssize(request.sequence->tokens);
  return std::min({request.at_most, length_.value_or(kLongestProposal), room});
}

// Rows after the prompt that a forward reads before that of the last token. A prompt does not
// count: it is read once in any case.
int64_t Level::lag(const Sequence& sequence, Context& context) const {
  const size_t last = sequence.tokens.size() - 1;
  const size_t held = context.match(sequence.tokens, sequence.num_accepted());
  const auto start = static_cast<int64_t>(model_.resumable(context, std::min(held, last)));
  return start < sequence.prompt_length - 1 ? 0 : static_cast<int64_t>(last) - start;
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
  const int64_t rows_before = stats.rows;
  const bool lags = std::ranges::any_of(drafts, [](const Draft* draft) { return draft->lag > 0; });
  size_t made = 0;
  std::vector<Proposal> steps = advance(rests_of(drafts));
  for (size_t i = 0; i < drafts.size(); ++i) {
    made += steps[i].tokens.size();
    drafts[i]->lag = 0;
    steps[i].reached = 1.0;
    for (const double stated : steps[i].confidences)
      steps[i].reached *= policy_.acceptance.own.probability(stated);
    drafts[i]->add(std::move(steps[i]));
  }
  const int64_t rows = stats.rows - rows_before;
  const double took = clock_() - begun;
  const bool is_usual = rows <= std::ssize(drafts) * (kLongestProposal + 1);
  if (is_usual || lags) policy_.charge(drafts, took);
  if (is_usual) policy_.learn(drafts.size(), made, took);  // else it caught up, or read a prompt
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
  std::vector<std::shared_ptr<Context>> contexts;
  std::vector<size_t> starts;
  bool is_drafted = false;
  for (const DraftRequest& request : requests) {
    const Sequence& sequence = *request.sequence;
    contexts.push_back(model_.context(request.sequence));
    // The last token is forwarded again: its logits are needed.
    const size_t held = contexts.back()->match(sequence.tokens, sequence.num_accepted());
    starts.push_back(
        model_.resumable(*contexts.back(), std::min(held, sequence.tokens.size() - 1)));
    is_drafted = is_drafted || (request.at_most > 1 && !drafter_->is_silent());
  }
  std::vector<DraftRequest> draft_requests;
  std::vector<Proposal> proposals(requests.size());
  if (is_drafted) {
    draft_requests = this->draft_requests(requests, starts);
    proposals = drafter_->propose(draft_requests);
  }
  const std::span<const DraftRequest> asked = is_drafted ? draft_requests : requests;
  std::vector<Rows> batch;
  int64_t num_rows = 0;
  bool is_prompt = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    keep_known(proposals[i]);
    const Sequence& sequence = *requests[i].sequence;
    const std::vector<int32_t>& candidate = proposals[i].tokens;
    Rows rows{contexts[i], starts[i], {}, candidate.size() + 1};
    rows.tokens.reserve(sequence.tokens.size() - starts[i] + candidate.size());
    rows.tokens.assign(sequence.tokens.begin() + static_cast<std::ptrdiff_t>(starts[i]),
                       sequence.tokens.end());
    rows.tokens.insert(rows.tokens.end(), candidate.begin(), candidate.end());
    is_prompt = is_prompt || static_cast<int64_t>(starts[i]) < sequence.prompt_length - 1;
    num_rows += std::ssize(rows.tokens);
    batch.push_back(std::move(rows));
  }
  const double drafted = clock_();
  model_.forward(batch);
  const double forwarded = clock_();
  std::vector<ScoredTokens> answers;
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    answers.push_back(model_.verify(row, proposals[i].tokens, requests[i].sequence));
    row += std::ssize(proposals[i].tokens) + 1;
  }
  const double sampled = clock_();
  size_t made = 0;
  for (const ScoredTokens& answer : answers) made += answer.tokens.size();
  std::vector<Proposal> verified = conclude(asked, contexts, proposals, std::move(answers));
  ++stats.forwards;
  stats.rows += num_rows;
  stats.seconds += forwarded - drafted;
  stats.pick_seconds += sampled - forwarded;
  if (!is_prompt || num_rows <= kLongestProposal)
    costs_.of(requests.size())->add(num_rows, clock_() - drafted);
  if (!is_prompt) rates_[requests.size()].add(static_cast<double>(made), clock_() - begun);
  return verified;
}

double Level::seconds_per_token(size_t count) {
  const auto sequences = static_cast<double>(count);
  const double now = rates_[count].seconds_per_token().value_or(kAlwaysDraft);
  const double plain = costs_.of(count)->seconds(sequences) / sequences;
  return std::min(now, plain > 0.0 ? plain : kAlwaysDraft);
}

// The requests to the drafter: none for a prompt that is not prefilled yet.
std::vector<DraftRequest> Level::draft_requests(std::span<const DraftRequest> requests,
                                                std::span<const size_t> starts) {
  const size_t count = requests.size();
  const std::shared_ptr<RowCosts>& costs = costs_.of(count);
  const double token_value_s = seconds_per_token(count);
  const auto sharing = static_cast<int64_t>(count);
  std::vector<DraftRequest> draft_requests(requests.begin(), requests.end());
  for (size_t i = 0; i < count; ++i) {
    DraftRequest& request = draft_requests[i];
    const auto start = static_cast<int64_t>(starts[i]);
    const bool has_prompt = start > 0 && start >= request.sequence->prompt_length - 1;
    request.at_most = has_prompt ? std::min(request.at_most, model_.max_rows() / sharing) - 1 : 0;
    request.token_value_s = std::min(token_value_s, request.token_value_s);
    request.costs = costs;
    request.rows = request.sharing = sharing;
  }
  return draft_requests;
}

// Cuts a proposal before the first token that this model does not have: vocabularies of one
// tokenizer may be padded to different sizes.
void Level::keep_known(Proposal& proposal) const {
  const auto unknown = std::find_if(proposal.tokens.begin(), proposal.tokens.end(),
                                    [this](int32_t token) { return token >= model_.vocabulary(); });
  proposal.cut(static_cast<size_t>(unknown - proposal.tokens.begin()));
}

// Turns verified tokens into proposals of this level, and lets its drafter observe them.
std::vector<Proposal> Level::conclude(std::span<const DraftRequest> requests,
                                      std::span<const std::shared_ptr<Context>> contexts,
                                      std::span<const Proposal> proposals,
                                      std::vector<ScoredTokens> answers) {
  std::vector<Proposal> results;
  results.reserve(requests.size());
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto& [tokens, probabilities] = answers[i];
    const size_t drafted = proposals[i].tokens.size();
    const size_t accepted = tokens.empty() ? 0 : tokens.size() - 1;
    Proposal& result = results.emplace_back();
    result.row = row;
    result.drafted = static_cast<int64_t>(drafted);
    result.depths = proposals[i].depths_of(tokens);
    result.tokens = std::move(tokens);
    result.confidences = std::move(probabilities);
    row += static_cast<int64_t>(drafted) + 1;
    if (drafted == 0) continue;
    contexts[i]->record(requests[i].sequence->tokens.size() + accepted, {});
    stats.count(drafted, accepted);
    drafter_->observe(requests[i], proposals[i], accepted);
  }
  return results;
}

}  // namespace specqd
