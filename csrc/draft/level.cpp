#include "draft/level.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace specqd {
namespace {

constexpr int64_t kFirstProposal = 4, kLongestProposal = 32;
constexpr std::array<int64_t, 5> kMeasuredRows{1, 2, 4, 9, 16};
constexpr int64_t kMostMeasuredRows = 48;  // once: a batch drafts at many rows, and is to know what
                                           // it left
constexpr int kLeastMeasurements = 2, kMostMeasurements = 5;
constexpr double kMeasuringSeconds = 0.3;  // after which no further one is begun

// Takes the guesses of proposals in the making back, however that ends.
class Guesses {
 public:
  explicit Guesses(std::span<Draft> drafts) : drafts_(drafts) {}
  ~Guesses() {
    for (Draft& draft : drafts_)
      draft.request.sequence->forget_guesses(draft.proposal.tokens.size());
  }
  Guesses(const Guesses&) = delete;
  Guesses& operator=(const Guesses&) = delete;

 private:
  std::span<Draft> drafts_;
};

std::vector<DraftRequest> requests_of(std::span<Draft* const> drafts) {
  std::vector<DraftRequest> requests;
  requests.reserve(drafts.size());
  for (const Draft* draft : drafts) requests.push_back(draft->to_request());
  return requests;
}

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
      policy_(costs_),
      reach_(kFirstProposal) {}

void Level::release(const std::shared_ptr<Sequence>& sequence) {
  drafter_->release(sequence);
  model_.release(sequence);
}

void Level::measure() {
  const std::array<int32_t, 1> start{0};
  const auto text = std::make_shared<Sequence>(start, std::make_shared<Picker>(), 1);
  const auto context = model_.context(text);
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
  policy_.lend();
  model_.release(text);
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
  if (!length_) {
    policy_.begin(requests);
    if (policy_.is_pause(requests.size())) return std::vector<Proposal>(requests.size());
    if (drafter_->is_free() && policy_.cannot_pay(requests)) return bypass(requests);
  }
  std::vector<Draft> drafts;
  drafts.reserve(requests.size());
  for (const DraftRequest& request : requests) drafts.emplace_back(request, longest(request));
  for (const DraftRequest& request : requests)
    model_.context(request.sequence)->begin(request.sequence->tokens.size());
  {
    const Guesses guesses(drafts);
    try {
      std::vector<Draft*> going;
      while (true) {
        going.clear();
        for (Draft& draft : drafts)
          if (draft.may_go_on()) going.push_back(&draft);
        if (going.empty()) break;
        if (length_)
          go_round(going);
        else
          extend(going);
      }
    } catch (const CacheFull&) {
      // A draft needs no room: what was proposed so far stands.
    }
  }
  std::vector<Proposal> proposals;
  proposals.reserve(drafts.size());
  for (Draft& draft : drafts) proposals.push_back(std::move(draft.proposal));
  return proposals;
}

int64_t Level::longest(const DraftRequest& request) const {
  const int64_t room = model_.max_positions() - std::ssize(request.sequence->tokens);
  return std::min({request.at_most, length_.value_or(reach_), room});
}

// What the drafter says, as it is.
std::vector<Proposal> Level::bypass(std::span<const DraftRequest> requests) {
  std::vector<Proposal> proposals = drafter_->propose(requests);
  for (Proposal& candidate : proposals) {
    keep_known(candidate);
    if (!candidate.is_empty()) candidate = candidate.bypassed();
  }
  return proposals;
}

void Level::extend(std::span<Draft* const> drafts) {
  const double begun = clock_(), inside = stats.seconds + stats.pick_seconds;
  const int64_t rows_before = stats.rows;
  std::vector<Proposal> expected_proposal(drafts.size());
  if (drafter_->is_free()) expected_proposal = bypass_proposals(drafts);
  const std::vector<Draft*> own = policy_.should_draft(drafts, expected_proposal, *drafter_);
  std::vector<Draft*> others;
  std::vector<Proposal> candidate;
  for (size_t i = 0; i < drafts.size(); ++i)
    if (std::find(own.begin(), own.end(), drafts[i]) == own.end()) {
      others.push_back(drafts[i]);
      candidate.push_back(std::move(expected_proposal[i]));
    }
  if (!others.empty() && !drafter_->is_free()) candidate = bypass_proposals(others);
  for (size_t i = 0; i < others.size(); ++i) {
    const DraftRequest& request = others[i]->request;
    const std::vector<double> chances =
        policy_.chances_unseen(request, drafter_->chances(request, candidate[i]));
    others[i]->add(candidate[i].is_empty() ? Proposal() : candidate[i].bypassed(), chances);
  }
  if (own.empty()) return;
  const size_t made = go_round(own);
  const double took = clock_() - begun;  // deciding is a part of what a round costs
  for (const Draft* draft : own)
    if (draft->proposal.tried < kAlwaysDraft)
      policy_.probes().cost(took / static_cast<double>(own.size()) +
                            draft->request.added_seconds(1.0));
  const int64_t rows = stats.rows - rows_before;
  if (rows <= std::ssize(own) * (kLongestProposal + 1))  // else it read a prompt
    policy_.learn(own.size(), made, rows, took - (stats.seconds + stats.pick_seconds - inside));
}

// What the drafter says for the one who asked this level.
std::vector<Proposal> Level::bypass_proposals(std::span<Draft* const> drafts) {
  const bool is_silent = std::all_of(drafts.begin(), drafts.end(), [this](const Draft* draft) {
    return drafter_->is_silent(*draft->request.sequence);
  });
  for (Draft* draft : drafts) draft->is_alone = is_silent;
  if (is_silent) return std::vector<Proposal>(drafts.size());
  std::vector<Proposal> candidate = drafter_->propose(requests_of(drafts));
  for (size_t i = 0; i < drafts.size(); ++i) {
    keep_known(candidate[i]);
    drafts[i]->is_alone = drafter_->is_free() && candidate[i].is_empty();
  }
  return candidate;
}

// Extends each by what this level makes in one forward; returns the tokens of all.
size_t Level::go_round(std::span<Draft* const> drafts) {
  size_t made = 0;
  std::vector<Proposal> steps = advance(requests_of(drafts));
  for (size_t i = 0; i < drafts.size(); ++i) {
    made += steps[i].tokens.size();
    const std::vector<double> chances = this->chances(drafts[i]->request, steps[i]);
    drafts[i]->add(std::move(steps[i]), chances);
  }
  return made;
}

std::vector<double> Level::chances(const DraftRequest& request, const Proposal& proposal) {
  const Calibration& own = policy_.acceptance(*request.sequence).own;
  std::vector<double> chances;
  chances.reserve(proposal.confidences.size());
  for (const double confidence : proposal.confidences)
    chances.push_back(own.probability(confidence));
  return chances;
}

void Level::observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) {
  if (const auto sure = static_cast<double>(accepted) - proposal.tried; sure > 0.0)
    policy_.probes().bring(sure * request.token_value_s);
  const auto count = std::ssize(proposal.tokens);
  if (static_cast<int64_t>(accepted) == count && count >= reach_)
    reach_ = std::min(2 * reach_, kLongestProposal);
  AcceptanceModel& trust = policy_.acceptance(*request.sequence);
  std::vector<bool> is_passed(proposal.tokens.size());
  for (const auto& [start, part] : proposal.passed) {
    const size_t end = std::min(start + part->tokens.size(), is_passed.size());
    std::fill(is_passed.begin() + static_cast<std::ptrdiff_t>(start),
              is_passed.begin() + static_cast<std::ptrdiff_t>(end), true);
    if (accepted < start) continue;
    const size_t right = std::min(accepted - start, part->tokens.size());
    const std::vector<double> chances = drafter_->chances(request, *part);
    for (size_t i = 0; i < std::min(chances.size(), right + 1); ++i)
      trust.bypass_bias.observe(chances[i], i < right);
    drafter_->observe(request, *part, right);
  }
  double before = request.confidence;
  for (size_t i = 0; i < std::min(proposal.confidences.size(), accepted + 1); ++i) {
    if (!is_passed[i]) {
      trust.own.observe(proposal.confidences[i], i < accepted);
      trust.next.observe(before, i < accepted);
    }
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
    starts.push_back(std::min(contexts.back()->match(sequence.tokens, sequence.num_accepted()),
                              sequence.tokens.size() - 1));
    is_drafted = is_drafted || (request.at_most > 1 && !drafter_->is_silent(sequence));
  }
  std::vector<DraftRequest> draft_requests(requests.begin(), requests.end());
  std::vector<Proposal> proposals(requests.size());
  if (is_drafted) {
    draft_requests = this->draft_requests(requests, starts);
    proposals = drafter_->propose(draft_requests);
  }
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
  std::vector<Answer> answers;
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    answers.push_back(model_.verify(row, proposals[i].tokens, requests[i].sequence));
    row += std::ssize(proposals[i].tokens) + 1;
  }
  const double picked = clock_();
  size_t made = 0;
  for (const Answer& answer : answers) made += answer.tokens.size();
  std::vector<Proposal> verified =
      conclude(draft_requests, contexts, proposals, std::move(answers));
  ++stats.forwards;
  stats.rows += num_rows;
  stats.seconds += forwarded - drafted;
  stats.pick_seconds += picked - forwarded;
  if (!is_prompt || num_rows <= kLongestProposal)
    costs_.of(requests.size())->add(num_rows, clock_() - drafted);
  if (!is_prompt) rates_[requests.size()].add(static_cast<double>(made), clock_() - begun);
  return verified;
}

double Level::seconds_per_token(size_t count) {
  const auto texts = static_cast<double>(count);
  const double pace = rates_[count].seconds_per_token().value_or(kAlwaysDraft);
  const double plain = costs_.of(count)->seconds(texts) / texts;
  return std::min(pace, plain > 0.0 ? plain : kAlwaysDraft);
}

// What the drafter is asked: nothing for a prompt that is still to be read.
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

// What was verified, as proposals of this level; its own drafter hears of it.
std::vector<Proposal> Level::conclude(std::span<const DraftRequest> requests,
                                      std::span<const std::shared_ptr<Context>> contexts,
                                      std::span<const Proposal> proposals,
                                      std::vector<Answer> answers) {
  std::vector<Proposal> results;
  results.reserve(requests.size());
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto& [tokens, probabilities] = answers[i];
    const size_t drafted = proposals[i].tokens.size();
    const size_t accepted = tokens.empty() ? 0 : tokens.size() - 1;
    Proposal& result = results.emplace_back();
    result.row = row;
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
