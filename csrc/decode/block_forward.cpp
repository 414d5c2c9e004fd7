#include "decode/block_forward.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace specqd {
namespace {

int64_t feature_width(const Decoder& decoder) {
  if (decoder.context_width() == 0)
    throw std::invalid_argument("the decoder is not a block drafter");
  return decoder.context_width();
}

}  // namespace

BlockForward::BlockForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
                           Precision precision, std::shared_ptr<ModelForward> above,
                           std::vector<int64_t> boundaries, std::vector<int32_t> ids, int64_t block,
                           int32_t mask)
    : FeatureForward(decoder, std::move(cache), precision, std::move(above), std::move(boundaries),
                     std::move(ids), feature_width(*decoder)),
      block_(block),
      mask_(mask) {
  if (block < 2 || block > max_rows())
    throw std::invalid_argument("a block has 2 rows or more, and not more than a forward");
  if (mask < 0 || mask >= vocabulary())
    throw std::invalid_argument("the mask is outside the vocabulary");
  if (decoder_->has_selector() && has_own_ids())
    throw std::invalid_argument("a drafter with a selector has the ids of the model above");
}

std::shared_ptr<Context> BlockForward::context(const std::shared_ptr<Sequence>& sequence) {
  State& state = states_.of(*sequence, *cache_);
  follow(state, *sequence);
  return state.context;
}

void BlockForward::release(const std::shared_ptr<Sequence>& sequence) {
  states_.release(*sequence, *cache_);
}

void BlockForward::follow(State& state, const Sequence& sequence) {
  const std::shared_ptr<Context> source = above_->held(sequence);
  if (source == nullptr) return;  // rows of no real sequence, to measure their time
  const FeatureLog& log = log_of(*source);
  if (source != state.source) {
    state = {.context = state.context, .source = source, .version = log.version()};
    state.length = attach_prefix(state.context->slot(), sequence.accepted(), sequence);
  }
  state.newest = sequence.tokens.size() - 1;
  state.known = std::min({log.end(), source->current_length(), state.newest});
  state.length = std::min(state.length, state.newest);
  if (!log.is_empty()) state.length = std::min(state.length, log.first_after(state.version));
  state.version = log.version();
  if (state.length < std::max(state.first, log.begin())) {  // features in between are not known
    state.first = state.length = std::min(log.begin(), state.newest);
    cache_->release_pages(state.context->slot());
  }
  state.known = std::max(state.known, state.length);
}

void BlockForward::publish(const std::shared_ptr<Sequence>& sequence) {
  State* const state = states_.find(*sequence);
  if (state == nullptr || state->source == nullptr) return;
  follow(*state, *sequence);
  if (state->first > 0) return;
  const size_t exact = std::min(state->length, state->source->settled());
  publish_pages(state->context->slot(), sequence->accepted().first(exact), *sequence);
}

BlockForward::Readiness BlockForward::readiness(const Sequence& sequence) {
  const State* const found = states_.find(sequence);
  if (found == nullptr || found->source == nullptr) return {};
  const State& state = *found;
  return {state.known == state.newest && state.newest > state.first,
          static_cast<int64_t>(state.first), static_cast<int64_t>(state.length),
          static_cast<int64_t>(state.known - state.length),
          std::min(state.source->current_length() + 1, sequence.tokens.size())};
}

Rows BlockForward::block_rows(const std::shared_ptr<Sequence>& sequence, int64_t count) {
  const auto rows = static_cast<size_t>(count);
  Rows block{context(sequence), sequence->tokens.size() - 1, {}, rows - 1};
  block.tokens.assign(rows, mask_);
  block.tokens.front() = sequence->tokens.back();
  return block;
}

// Adds rows of a sequence from a position on to the forward.
void BlockForward::add_rows(const State& state, size_t position, size_t count, size_t logits) {
  const auto first = static_cast<int64_t>(position - state.first);
  const auto rows = static_cast<int64_t>(count);
  if (!cache_->make_writable(state.context->slot(), first, first + rows))
    throw CacheFull("the draft head's KV cache is full; use shorter sequences or fewer at once");
  rows_.push_back({state.context->slot(), first, rows, static_cast<int64_t>(logits)});
}

// Makes the pending features of all sequences part of their contexts.
void BlockForward::absorb(std::span<State* const> states) {
  const auto most = static_cast<size_t>(decoder_->max_rows());
  while (true) {
    std::vector<size_t> counts;
    size_t total = 0;
    rows_.clear();
    inputs_.clear();
    for (const State* state : states) {
      const size_t count = std::min(state->known - state->length, most - total);
      counts.push_back(count);
      if (count == 0) continue;
      add_rows(*state, state->length, count, 0);
      for (size_t i = 0; i < count; ++i) append_feature(*state->source, state->length + i, inputs_);
      total += count;
    }
    if (total == 0) return;
    run_forward([&] {
      decoder_->absorb({precision_, *cache_, {}, rows_, HeadUse::kWhole, {.values = inputs_}});
    });
    for (size_t i = 0; i < counts.size(); ++i) states[i]->length += counts[i];
  }
}

void BlockForward::forward(std::span<const Rows> batch) {
  std::vector<State*> states;
  int64_t total = 0;
  for (const Rows& rows : batch) {
    State& state = states_.of(*rows.context);
    const bool is_block = !rows.tokens.empty() && state.source != nullptr;
    if (is_block && (rows.start != state.newest || state.known != state.newest))
      throw std::invalid_argument("the context does not reach the block");
    if (rows.logits > rows.tokens.size())
      throw std::invalid_argument("rows ask for more logits than tokens");
    for (const int32_t token : rows.tokens)
      if (token < 0 || token >= vocabulary())
        throw std::invalid_argument("token id outside the vocabulary");
    total += std::ssize(rows.tokens);
    states.push_back(&state);
  }
  if (total > max_rows()) throw TooManyRows("too many rows of blocks at once");
  absorb(states);
  if (total == 0) return;
  tokens_.clear();
  rows_.clear();
  for (size_t i = 0; i < batch.size(); ++i) {
    tokens_.insert(tokens_.end(), batch[i].tokens.begin(), batch[i].tokens.end());
    add_rows(*states[i], batch[i].start, batch[i].tokens.size(), batch[i].logits);
  }
  run_forward([&] { decoder_->forward({precision_, *cache_, tokens_, rows_, head_}); });
}

}  // namespace specqd
