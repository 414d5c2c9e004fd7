#include "draft/block_drafter.h"

#include <algorithm>
#include <utility>

#include "draft/joint_cut.h"
#include "draft/measure.h"

namespace specqd {
namespace {

constexpr std::array<int64_t, 3> kRows{4, 8, 12};  // of a block, or as many as it can have
constexpr int64_t kComparedBlocks = 4;  // one of so many is sampled with all shares of the noise

// Takes a sequence's guesses back when it goes out of scope.
class Guesses {
 public:
  explicit Guesses(Sequence& sequence) : sequence_(sequence) {}
  ~Guesses() { sequence_.forget_guesses(count_); }
  Guesses(const Guesses&) = delete;
  Guesses& operator=(const Guesses&) = delete;

  void add(std::span<const int32_t> tokens) {
    sequence_.guess(tokens);
    count_ += tokens.size();
  }

 private:
  Sequence& sequence_;
  size_t count_ = 0;
};

}  // namespace

// --- What to draft -------------------------------------------------------------------------------

BlockDrafter::BlockDrafter(BlockForward& model, std::optional<int64_t> length, Clock clock)
    : model_(model), length_(length), clock_(std::move(clock)) {}

void BlockDrafter::measure() {
  if (is_measured_) return;  // as it stands in another place too
  is_measured_ = true;
  costs_.begin(measured_costs(model_, clock_));
  probes_.begin(costs_.of(1)->seconds(static_cast<double>(model_.block())));
}

void BlockDrafter::release(const std::shared_ptr<Sequence>& sequence) {
  blocks_.erase(sequence->key);
  model_.publish(sequence);
  model_.release(sequence);
}

bool BlockDrafter::keeps_all(const DraftRequest& request) const {
  return length_ || request.token_value_s == kAlwaysDraft;
}

int64_t BlockDrafter::longest(const DraftRequest& request) const {
  const int64_t room = model_.max_positions() - std::ssize(request.sequence->tokens);
  return std::min(
      {request.at_most, length_.value_or(model_.block() - 1), model_.block() - 1, room});
}

std::vector<Value> BlockDrafter::values(std::span<const DraftRequest> requests) {
  std::vector<Value> values;
  values.reserve(requests.size());
  for (const DraftRequest& request : requests) {
    const Plan found = plan(request, requests.size());
    values.push_back(request.token_value_s == kAlwaysDraft ? Value{} : found.value);
  }
  return values;
}

// A block that was made after the tokens which are still the newest verified ones is asked again
// for what follows the guesses that it agrees with. So a choice may ask for the rest of a proposal.
BlockDrafter::Plan BlockDrafter::plan(const DraftRequest& request, size_t count) {
  Plan plan;
  const Sequence& sequence = *request.sequence;
  const int64_t most = longest(request);
  if (most <= 0) return plan;
  model_.context(request.sequence);
  const BlockForward::Readiness ready = model_.readiness(sequence);
  learn(sequence, ready.verified);
  if (const auto last = blocks_.find(sequence.key); last != blocks_.end()) {
    plan.known = rest_of(last->second, request, plan.value);
    return plan;
  }
  if (ready.is_ready) choose_rows(request, count, most, plan);
  return plan;
}

// The number of rows whose tokens are expected to save most, in a batch of `count` blocks; all if
// the length is fixed.
void BlockDrafter::choose_rows(const DraftRequest& request, size_t count, int64_t longest,
                               Plan& plan) {
  const int64_t all = longest + 1;
  if (request.token_value_s == kAlwaysDraft) {
    plan.rows = all;
    return;
  }
  const auto sequences = static_cast<double>(count);
  const RowCosts& costs = *costs_.of(count);
  const auto forward_s = [&](int64_t rows) {
    return costs.seconds(sequences * static_cast<double>(rows)) / sequences;
  };
  double reached = 1.0, tokens = 0.0;
  for (int64_t place = 0; place < longest; ++place) {
    reached *= acceptance_.expected(static_cast<size_t>(place), request.confidence);
    tokens += reached;
    const int64_t needed = place + 2;
    const auto enough = std::ranges::find_if(kRows, [&](int64_t rows) { return rows >= needed; });
    const int64_t rows = enough == kRows.end() ? all : std::min(*enough, all);
    const double saved = tokens * request.token_value_s -
                         request.added_seconds(static_cast<double>(place + 1)) - forward_s(rows);
    if (length_ ? place + 1 < longest : saved <= plan.value.saved_s) continue;
    plan.value = {std::max(saved, 0.0), tokens};
    plan.rows = rows;
  }
}

// What a block predicts after the sequence's guesses, cut to what pays; nothing if they differ.
Proposal BlockDrafter::rest_of(const Block& block, const DraftRequest& request,
                               Value& value) const {
  const auto& tokens = request.sequence->tokens;
  const size_t begun = tokens.size() - block.after;
  const auto guesses = tokens.begin() + static_cast<std::ptrdiff_t>(block.after);
  if (begun >= block.drawn.size() ||
      !std::equal(guesses, tokens.end(), block.drawn.begin(),
                  [](int32_t guess, const Drawn& drawn) { return guess == drawn.token(); }))
    return {};
  Proposal rest;
  std::vector<double> chances;
  const size_t end = std::min(block.drawn.size(), begun + static_cast<size_t>(longest(request)));
  for (size_t place = begun; place < end; ++place) {
    const Drawn& drawn = block.drawn[place];
    rest.tokens.push_back(drawn.token());
    rest.confidences.push_back(drawn.stated);
    chances.push_back(acceptance_.probability(place, drawn.share, drawn.stated));
  }
  value = cut_jointly(request, chances, keeps_all(request), rest);
  return rest;
}

// Compares the sequence's last block with the tokens that were verified since, whoever proposed
// them, and forgets it.
void BlockDrafter::learn(const Sequence& sequence, size_t verified) {
  const auto found = blocks_.find(sequence.key);
  if (found == blocks_.end()) return;
  const Block& block = found->second;
  const bool is_continued = sequence.tokens.size() >= block.after && verified >= block.after &&
                            sequence.tokens[block.after - 1] == block.newest;
  if (is_continued && verified == block.after) return;
  for (size_t i = 0; is_continued && i < block.drawn.size() && block.after + i < verified; ++i) {
    const Drawn& drawn = block.drawn[i];
    const int32_t token = sequence.tokens[block.after + i];
    NoiseChoice::Outcome is_right;
    std::ranges::transform(drawn.tokens, is_right.begin(), [&](int32_t t) { return t == token; });
    if (block.is_compared) noise_.observe(i, is_right);
    acceptance_.observe(i, block.confidence, drawn.share, drawn.stated, is_right[drawn.share]);
    if (!is_right[drawn.share]) break;
  }
  blocks_.erase(found);
}

void BlockDrafter::observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) {
  if (proposal.probe_from != Proposal::kNever)
    probes_.refund(static_cast<double>(accepted) * request.token_value_s);
}

// --- Blocks --------------------------------------------------------------------------------------

std::vector<Proposal> BlockDrafter::propose(std::span<const DraftRequest> requests) {
  std::vector<Plan> plans;
  for (const DraftRequest& request : requests) {
    plans.push_back(plan(request, requests.size()));
    if (request.at_most <= 0 || request.token_value_s == kAlwaysDraft) continue;
    ++stats.asked;
    stats.token_value_seconds += request.token_value_s;
  }
  probe(requests, plans);
  try {
    make_blocks(requests, plans);
  } catch (const CacheFull&) {
    // A draft is not required: the proposals made so far are kept.
  }
  std::vector<Proposal> proposals;
  for (Plan& each : plans) proposals.push_back(std::move(each.known));
  return proposals;
}

// Where no block is expected to pay, tries a whole one within the budget, to learn whether it does.
void BlockDrafter::probe(std::span<const DraftRequest> requests, std::span<Plan> plans) {
  if (length_) return;
  for (const DraftRequest& request : requests)
    if (request.is_first() && request.token_value_s < kAlwaysDraft)
      probes_.pass(request.token_value_s / static_cast<double>(request.sharing));
  if (std::ranges::any_of(plans, [](const Plan& each) { return each.rows > 0; })) return;
  for (size_t i = 0; i < plans.size(); ++i) {
    const int64_t most = longest(requests[i]);
    const bool is_free = blocks_.contains(requests[i].sequence->key);  // its tokens are known
    if (most <= 0 || is_free || !model_.readiness(*requests[i].sequence).is_ready) continue;
    if (requests[i].token_value_s == kAlwaysDraft || !probes_.is_open()) continue;
    plans[i].rows = most + 1;
    plans[i].is_probe = true;
  }
}

// Makes the planned blocks, as many in a forward as fit.
void BlockDrafter::make_blocks(std::span<const DraftRequest> requests, std::span<Plan> plans) {
  std::vector<size_t> chosen;
  int64_t rows = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].rows == 0) continue;
    if (rows + plans[i].rows > model_.max_rows()) {
      make(requests, plans, chosen);
      chosen.clear();
      rows = 0;
    }
    chosen.push_back(i);
    rows += plans[i].rows;
  }
  if (!chosen.empty()) make(requests, plans, chosen);
}

void BlockDrafter::forward(std::span<const Rows> batch) {
  const double begun = clock_();
  const size_t read = model_.bytes_read(), cache_read = model_.cache_bytes_read();
  const size_t whole_cache = model_.whole_cache_bytes();
  model_.forward(batch);
  stats.seconds += clock_() - begun;
  stats.bytes_read += model_.bytes_read() - read;
  stats.cache_bytes_read += model_.cache_bytes_read() - cache_read;
  stats.whole_cache_bytes += model_.whole_cache_bytes() - whole_cache;
}

void BlockDrafter::follow(std::span<const std::shared_ptr<Sequence>> sequences) {
  std::vector<Rows> batch;
  for (const auto& sequence : sequences) batch.push_back({model_.context(sequence), 0, {}, 0});
  try {
    forward(batch);
  } catch (const CacheFull&) {
    // Without its context the sequence has no blocks.
  }
  for (const auto& sequence : sequences) model_.publish(sequence);
}

void BlockDrafter::make(std::span<const DraftRequest> requests, std::span<Plan> plans,
                        std::span<const size_t> chosen) {
  const double begun = clock_();
  std::vector<Rows> batch;
  int64_t rows = 0, pending = 0;
  for (const size_t i : chosen) {
    batch.push_back(model_.block_rows(requests[i].sequence, plans[i].rows));
    pending += model_.readiness(*requests[i].sequence).pending;
    rows += plans[i].rows;
  }
  forward(batch);
  const double forwarded = clock_();
  int64_t row = 0;
  for (const size_t i : chosen) {
    const int64_t count = plans[i].rows - 1;
    const Block& block = blocks_[requests[i].sequence->key] = sample(requests[i], row, count);
    row += count;
    plans[i].known = rest_of(block, requests[i], plans[i].value);
    if (plans[i].is_probe) plans[i].known.probe_from = 0;
  }
  const double sampled = clock_();
  ++stats.forwards;
  stats.rows += rows;
  stats.pick_seconds += sampled - forwarded;
  if (pending <= kLongestProposal * std::ssize(chosen))  // not a prompt
    costs_.of(chosen.size())->add(rows, sampled - begun);
  if (std::ranges::any_of(chosen, [&](size_t i) { return plans[i].is_probe; }))
    probes_.charge(sampled - begun);
}

// Samples the tokens of a block from rows of logits.
BlockDrafter::Block BlockDrafter::sample(const DraftRequest& request, int64_t row, int64_t count) {
  Sequence& sequence = *request.sequence;
  const bool compares = sequence.is_sampled && sampled_blocks_++ % kComparedBlocks == 0;
  Block block{sequence.tokens.size(), sequence.tokens.back(), request.confidence, compares};
  Guesses guesses(sequence);
  for (int64_t i = 0; i < count; ++i) {
    const std::optional<Drawn> drawn = draw(request, row + i, static_cast<size_t>(i), compares);
    if (!drawn) break;  // no token is allowed
    block.drawn.push_back(*drawn);
    const int32_t token = drawn->token();
    guesses.add({&token, 1});
    if (sequence.is_stop(token)) break;
  }
  return block;
}

// Samples the token of a row with the share of its position's noise that was right most often.
std::optional<BlockDrafter::Drawn> BlockDrafter::draw(const DraftRequest& request, int64_t row,
                                                      size_t place, bool compares) {
  const size_t best = request.sequence->is_sampled ? noise_.best(place) : 0;
  Drawn drawn{{}, best, 0.0};
  for (size_t share = 0; share < kNoiseShares.size(); ++share) {
    if (share != best && !compares) continue;
    model_.sample_with(kNoiseShares[share]);
    const auto [tokens, probabilities] = model_.verify(row, {}, request.sequence);
    if (tokens.empty()) return std::nullopt;
    if (!compares) drawn.tokens.fill(tokens.front());
    drawn.tokens[share] = tokens.front();
    if (share == best) drawn.stated = probabilities.front();
  }
  return drawn;
}

}  // namespace specqd
