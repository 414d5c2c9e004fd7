#include "decode/forward.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "kernels/float_mode.h"

namespace specqd {
namespace {

// A draft reads at least so many positions, and more if their bytes are at most a part of those of
// its weights.
constexpr int64_t kLeastDraftContext = 1536;
constexpr size_t kWeightsOverContext = 8;
// Rows with logits that weigh pages: more belong to a prompt that is scored.
constexpr int64_t kMostWeighedRows = 64;

}  // namespace

void check_rows(const Decoder& decoder, const KvCache& cache, std::span<const int32_t> tokens,
                std::span<const ForwardRows> rows) {
  if (cache.shape() != decoder.kv_shape() || cache.states().shape() != decoder.state_shape())
    throw std::invalid_argument("the cache was made for another decoder");
  int64_t total = 0;
  for (const ForwardRows& part : rows) {
    if (part.start < 0 || part.logits < 0 || part.logits > part.count)
      throw std::invalid_argument(
          "rows start before the sequence or ask for more logits than tokens");
    total += part.count;
    if (!decoder.has_pages(cache, part))
      throw std::invalid_argument("the cache has no pages for the rows");
    if (!cache.states().can_continue(part.sequence, part.start))
      throw std::invalid_argument("the sequence has no state from which the rows could continue");
  }
  if (total != std::ssize(tokens) || total > decoder.max_rows())
    throw std::invalid_argument("there are too many rows, or they do not match the tokens");
  for (const int32_t token : tokens)
    if (token < 0 || token >= decoder.spec().vocabulary)
      throw std::invalid_argument("token id outside the vocabulary");
}

size_t DecoderForward::attach_prefix(int slot, std::span<const int32_t> tokens,
                                     const Sequence& sequence) {
  if (!sequence.reuses_prefixes || cache_->has_page(slot, 0)) return 0;
  if (store_ != nullptr) store_->restore(sequence.key, tokens, sequence.cache_salt);
  return static_cast<size_t>(cache_->attach_prefix(slot, tokens, sequence.cache_salt));
}

void DecoderForward::publish_pages(int slot, std::span<const int32_t> tokens,
                                   const Sequence& sequence) {
  cache_->publish(slot, tokens, sequence.cache_salt);
  if (store_ != nullptr) store_->keep(slot, tokens, sequence.cache_salt);
}

void DecoderForward::run_forward(const std::function<void()>& work) {
  run_concurrently(work);
  bytes_read_ += decoder_->moved_bytes();
  const size_t seen = decoder_->seen_cache_bytes();
  cache_bytes_read_ += seen;
  whole_cache_bytes_ += seen + decoder_->skipped_cache_bytes();
}

ScoredTokens DecoderForward::verify(int64_t row, std::span<const int32_t> proposal,
                                    const std::shared_ptr<Sequence>& sequence) {
  const auto rows = std::ssize(proposal) + 1;
  if (row < 0 || row + rows > logit_rows())
    throw std::invalid_argument("the last forward did not compute these rows of logits");
  const std::vector<int32_t> history = sequence->history(proposal);
  const Masks masks = sequence->masks(proposal).widened(rows, (vocabulary() + 31) / 32);
  const size_t before = history.empty() ? 0 : history.size() - proposal.size();
  const auto position = std::ssize(sequence->tokens);
  SamplerScratch& scratch = sequence->sampler->scratch;
  SamplerParams params = sequence->sampler->params;
  params.temperature = temperature(params);
  ScoredTokens verified;
  run_concurrently([&] {
    const FlushSubnormals flush;
    for (size_t i = 0; i <= proposal.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const auto known = std::span(history).first(history.empty() ? 0 : before + i);
      const uint32_t* mask = masks.width > 0 ? masks.words.data() + at * masks.width : nullptr;
      const int32_t previous = i == 0 ? sequence->tokens.back() : proposal[i - 1];
      const std::span<const float> logits =
          logits_after(row + at, previous, params.temperature > 0);
      const SampledToken sampled = sample_token(decoder_->kernels(), params, logits, position + at,
                                                known, sequence->prompt_length, mask, scratch);
      if (sampled.token < 0) break;
      verified.tokens.push_back(sampled.token);
      verified.probabilities.push_back(sampled.probability);
      if (i < proposal.size() && sampled.token != proposal[i]) break;
    }
    decoder_->output_head().record_sampled(verified.tokens);
  });
  return verified;
}

ModelForward::ModelForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
                           Precision precision, int64_t max_positions,
                           std::shared_ptr<ModelForward> exact)
    : DecoderForward(std::move(decoder), std::move(cache), precision),
      max_positions_(max_positions),
      exact_(std::move(exact)),
      affordable_(static_cast<int64_t>(decoder_->weight_bytes(precision) / kWeightsOverContext /
                                       std::max<size_t>(decoder_->strip_bytes_per_position(), 1))),
      weighed_from_(kLeastDraftContext) {
  if (exact_ != nullptr) exact_->has_draft_ = true;
}

void ModelForward::log_features(std::span<const int64_t> boundaries) {
  const std::span<const int64_t> before = decoder_->taps().boundaries();
  std::set<int64_t> all(before.begin(), before.end());
  all.insert(boundaries.begin(), boundaries.end());
  decoder_->taps().set({all.begin(), all.end()});
  (exact_ == nullptr ? this : exact_.get())->logs_features_ = true;
}

void ModelForward::set_draft_context(std::optional<int64_t> positions) {
  draft_context_ = positions;
  int64_t& from = exact_ == nullptr ? weighed_from_ : exact_->weighed_from_;
  if (positions && *positions > 0) from = std::min(from, *positions);
}

std::shared_ptr<Context> ModelForward::context(const std::shared_ptr<Sequence>& sequence) {
  std::shared_ptr<Context>& context = contexts_[sequence->key];
  if (context == nullptr) {
    const auto exact = exact_ == nullptr ? nullptr : exact_->context(sequence);
    const int slot = exact == nullptr ? cache_->create() : exact->slot();
    context = std::make_shared<Context>(slot, exact);
  }
  return context;
}

size_t ModelForward::resumable(const Context& context, size_t position) const {
  const auto at = static_cast<int64_t>(position);
  const int64_t start = cache_->states().last_start(context.slot(), at);
  // The rows before an earlier start may be a draft's, from which exact rows must not continue.
  return exact_ == nullptr && start < at ? 0 : static_cast<size_t>(start);
}

std::shared_ptr<Context> ModelForward::held(const Sequence& sequence) const {
  const auto found = contexts_.find(sequence.key);
  return found == contexts_.end() ? nullptr : found->second;
}

void ModelForward::adopt(const Sequence& sequence, std::shared_ptr<Context> context) {
  contexts_[sequence.key] = std::move(context);
}

void ModelForward::release(const std::shared_ptr<Sequence>& sequence) {
  const auto held = contexts_.extract(sequence->key);
  if (exact_ != nullptr)
    exact_->release(sequence);
  else if (!held.empty())
    cache_->release(held.mapped()->slot());
}

int64_t ModelForward::adopt_prefix(const std::shared_ptr<Sequence>& sequence) {
  if (exact_ != nullptr) return 0;
  Context& context = *this->context(sequence);
  if (context.length() > 0) return 0;
  const std::span<const int32_t> accepted = sequence->accepted();
  const size_t held = attach_prefix(context.slot(), accepted, *sequence);
  context.record(0, accepted.first(held));
  return static_cast<int64_t>(held);
}

void ModelForward::publish(const std::shared_ptr<Sequence>& sequence) {
  const std::shared_ptr<Context> context = held(*sequence);
  if (exact_ != nullptr || context == nullptr) return;
  const std::span<const int32_t> accepted = sequence->accepted();
  const size_t length = context->match(sequence->tokens, accepted.size());
  publish_pages(context->slot(), accepted.first(std::min(length, accepted.size())), *sequence);
}

void ModelForward::forward(std::span<const Rows> batch) {
  size_t count = 0;
  for (const Rows& rows : batch) count += rows.tokens.size();
  const auto most = static_cast<size_t>(decoder_->max_rows());
  if (count <= most)
    forward_whole(batch);
  else
    forward_whole(forward_surplus(batch, count - most));
}

void ModelForward::forward_hidden(std::span<const Rows> batch) {
  const HeadUse usual = std::exchange(head_, HeadUse::kNone);
  try {
    forward(batch);
  } catch (...) {
    head_ = usual;
    throw;
  }
  head_ = usual;
}

// Forwards the first `surplus` rows that need no logits; returns the other rows.
std::vector<Rows> ModelForward::forward_surplus(std::span<const Rows> batch, size_t surplus) {
  const auto most = static_cast<size_t>(decoder_->max_rows());
  std::vector<Rows> rest;
  for (const Rows& rows : batch) {
    Rows left = rows;
    while (surplus > 0 && left.tokens.size() > left.logits) {
      const size_t part = std::min({most, surplus, left.tokens.size() - left.logits});
      const auto end = left.tokens.begin() + static_cast<std::ptrdiff_t>(part);
      const Rows first{left.context, left.start, {left.tokens.begin(), end}, 0};
      forward_whole({&first, 1});
      left.tokens.erase(left.tokens.begin(), end);
      left.start += part;
      surplus -= part;
    }
    rest.push_back(std::move(left));
  }
  if (surplus > 0)
    throw TooManyRows("more than " + std::to_string(most) +
                      " rows of logits at once; use a smaller batch");
  return rest;
}

void ModelForward::forward_whole(std::span<const Rows> batch) {
  tokens_.clear();
  rows_.clear();
  weighed_.clear();
  for (const Rows& rows : batch) {
    const int64_t start = static_cast<int64_t>(rows.start), count = std::ssize(rows.tokens);
    if (!cache_->make_writable(rows.context->slot(), start, start + count))
      throw CacheFull("the KV cache of " + std::to_string(cache_->total_pages() * kPagePositions) +
                      " positions is full; use shorter sequences or fewer at once");
    tokens_.insert(tokens_.end(), rows.tokens.begin(), rows.tokens.end());
    rows_.push_back(forward_rows(rows, batch.size()));
  }
  check_rows(*decoder_, *cache_, tokens_, rows_);
  run_forward([this] { decoder_->forward({precision_, *cache_, tokens_, rows_, head_}); });
  for (const Rows& rows : batch) rows.context->record(rows.start, rows.tokens);
  if (logs_features()) log(batch);
}

ForwardRows ModelForward::forward_rows(const Rows& rows, size_t batch) {
  Context& context = *rows.context;
  const auto start = static_cast<int64_t>(rows.start);
  const int64_t count = std::ssize(rows.tokens);
  const auto logits = static_cast<int64_t>(rows.logits);
  ForwardRows part{context.slot(), start, count, logits, static_cast<int64_t>(context.settled())};
  if (context.is_provisional(rows.start))
    part.choice = context.draft_pages().choose(decoder_->strips(), start, draft_pages(batch));
  else
    part.weighs_pages = (has_draft_ || context.drafts()) && start + count > weighed_from_ &&
                        0 < logits && logits <= kMostWeighedRows;
  const int64_t first = weighed_.empty() ? 0 : weighed_.back().last;
  weighed_.push_back({part.weighs_pages ? rows.context : nullptr, first, first + logits});
  return part;
}

// The most pages that a draft in a batch of this size reads of each sequence; 0: all.
int64_t ModelForward::draft_pages(size_t batch) const {
  const int64_t usual = std::max(kLeastDraftContext, affordable_ / static_cast<int64_t>(batch));
  return draft_context_.value_or(usual) / kPagePositions;
}

ScoredTokens ModelForward::verify(int64_t row, std::span<const int32_t> proposal,
                                  const std::shared_ptr<Sequence>& sequence) {
  ScoredTokens verified = DecoderForward::verify(row, proposal, sequence);
  const auto rows = std::ssize(verified.tokens);
  const auto weighed = std::ranges::find_if(weighed_, [&](const Weighed& each) {
    return each.context != nullptr && each.first <= row && row + rows <= each.last;
  });
  if (weighed != weighed_.end() && rows > 0)
    weighed->context->draft_pages().weigh(decoder_->strips(),
                                          decoder_->page_weights(row, row + rows));
  return verified;
}

void ModelForward::log(std::span<const Rows> batch) {
  int64_t row = 0;
  for (const Rows& rows : batch) {
    const int64_t count = std::ssize(rows.tokens);
    rows.context->features().write(rows.start, rows.tokens.size(),
                                   decoder_->taps().rows(row, count));
    row += count;
  }
}

}  // namespace specqd
