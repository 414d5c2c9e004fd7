#include "decode/head_forward.h"

#include <algorithm>
#include <string>

#include "kernels/float_mode.h"

namespace specqd {

namespace {

int64_t feature_width(const Decoder& decoder) {
  if (decoder.pair_entry() == nullptr)
    throw std::invalid_argument("the decoder is not a draft head");
  return decoder.pair_entry()->feature_width();
}

}  // namespace

HeadForward::HeadForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
                         Precision precision, std::shared_ptr<ModelForward> above,
                         std::vector<int64_t> boundaries, std::vector<int32_t> ids)
    : FeatureForward(decoder, std::move(cache), precision, std::move(above), std::move(boundaries),
                     std::move(ids), feature_width(*decoder)) {}

// --- Sequences -----------------------------------------------------------------------------------

std::shared_ptr<Context> HeadForward::context(const std::shared_ptr<Sequence>& sequence) {
  State& state = states_.of(*sequence, *cache_);
  follow(state, *sequence);
  return state.context;
}

void HeadForward::release(const std::shared_ptr<Sequence>& sequence) {
  states_.release(*sequence, *cache_);
}

// Starts over: the cache has no entries for the tokens before `first`.
void HeadForward::begin(State& state, const Sequence& sequence, size_t first) {
  state.context->record(0, std::span(sequence.tokens).first(first));
  state.first = state.settled = first;
  state.hidden_for = 0;
  cache_->release_pages(state.context->slot());
}

// Starts with the entries that earlier sequences published for the tokens after the first one.
void HeadForward::begin_with_prefix(State& state, const Sequence& sequence) {
  const std::span<const int32_t> tokens = sequence.accepted();
  const size_t held = attach_prefix(state.context->slot(), tokens.subspan(1), sequence);
  if (held == 0) return;
  state.context->record(0, tokens.first(1 + held));
  state.first = 1;
  state.settled = 1 + held;
}

void HeadForward::publish(const std::shared_ptr<Sequence>& sequence) {
  State* const state = states_.find(*sequence);
  if (state == nullptr || state->source == nullptr) return;
  follow(*state, *sequence);
  const size_t exact = std::min(state->settled, state->source->settled() + 1);
  if (state->first != 1 || exact <= 1) return;
  publish_pages(state->context->slot(), sequence->accepted().first(exact).subspan(1), *sequence);
}

// Forgets entries whose features have become known or have changed since they were made, and those
// from which the head cannot continue.
void HeadForward::follow(State& state, const Sequence& sequence) {
  const std::shared_ptr<Context> source = above_->held(sequence);
  if (source == nullptr) return;  // rows of no real sequence, to measure their time
  if (source != state.source) {
    state.source = source;
    state.version = log_of(*source).version();
    begin(state, sequence, 0);
    begin_with_prefix(state, sequence);
  }
  const FeatureLog& log = log_of(*state.source);
  Context& context = *state.context;
  const size_t last = sequence.tokens.size() - 1;
  const size_t length = context.match(sequence.tokens, sequence.num_accepted());
  const size_t end = std::min({log.end(), source->current_length(), last});
  state.settled = std::min(state.settled, length);
  if (!log.is_empty()) state.settled = std::min(state.settled, log.first_after(state.version) + 1);
  state.version = log.version();
  if (log.begin() >= end) {
    if (length <= state.first || state.first == 0) begin(state, sequence, last);
  } else if (length < state.first || state.settled < log.begin() + 1) {
    begin(state, sequence, log.begin() + 1);
  } else if (state.settled < length && state.settled <= end) {
    context.record(state.settled, {});
  }
  const size_t start = std::min(context.length(), last);
  if (start > end && state.hidden_for != start) {  // the hidden row must be computed again
    state.settled = std::max(state.settled, state.first + 1) - 1;
    context.record(state.settled, {});
  }
}

bool HeadForward::knows_feature(const State& state, size_t token) const {
  const FeatureLog& log = log_of(*state.source);
  return token > log.begin() && token <= std::min(log.end(), state.source->current_length());
}

// --- Forwards ------------------------------------------------------------------------------------

void HeadForward::forward(std::span<const Rows> batch) {
  std::vector<Part> parts;
  int64_t logits = 0;
  for (const Rows& rows : batch) {
    State& state = states_.of(*rows.context);
    if (rows.start < state.first || rows.logits > rows.tokens.size())
      throw std::invalid_argument(
          "rows start before the draft head's cache or ask for more logits than tokens");
    for (const int32_t token : rows.tokens)
      if (token < 0 || token >= vocabulary())
        throw std::invalid_argument("token id outside the vocabulary");
    parts.push_back({&state, &rows, rows.start, logits});
    logits += static_cast<int64_t>(rows.logits);
  }
  logits_.resize(static_cast<size_t>(logits * decoder_->spec().vocabulary));
  while (pass(parts, false) || pass(parts, true)) {
  }
}

// Forwards the next rows of each sequence that have features or, if `recycles`, one row of each
// sequence that reads the head's own hidden row. Returns whether there were any.
bool HeadForward::pass(std::span<Part> parts, bool recycles) {
  tokens_.clear();
  inputs_.clear();
  rows_.clear();
  for (Part& part : parts) gather(part, recycles);
  if (tokens_.empty()) return false;
  const PairInputs inputs{inputs_, recycles};
  run_forward([&] { decoder_->forward({precision_, *cache_, tokens_, rows_, head_, inputs}); });
  take(parts, recycles);
  return true;
}

// Adds rows of a sequence to the pass: all that have features or, if `recycles`, only the next one.
void HeadForward::gather(Part& part, bool recycles) {
  const State& state = *part.state;
  const auto most = static_cast<size_t>(decoder_->max_rows());
  part.count = 0;
  for (size_t token = part.next; token < part.end() && tokens_.size() < most; ++token) {
    const bool is_known = state.source != nullptr && knows_feature(state, token);
    const bool has_hidden = !is_known && state.source != nullptr && state.hidden_for == token;
    if (has_hidden != recycles) break;
    const bool is_measured = state.source == nullptr;
    if (!is_known && !is_measured && part.count > 0) break;  // it reads a hidden row of this pass
    if (recycles)
      inputs_.insert(inputs_.end(), state.hidden.begin(), state.hidden.end());
    else if (is_known)
      append_feature(*state.source, token - 1, inputs_);
    else
      inputs_.insert(inputs_.end(), static_cast<size_t>(decoder_->pair_entry()->feature_width()),
                     0);
    const bool is_blank = token == 1 && decoder_->pair_entry()->blanks_first();
    tokens_.push_back(is_blank ? kBlank : part.rows->tokens[token - part.rows->start]);
    ++part.count;
    if (recycles) break;
  }
  if (part.count == 0) return;
  const auto first = static_cast<int64_t>(part.next - state.first);
  const auto count = static_cast<int64_t>(part.count);
  if (!cache_->make_writable(state.context->slot(), first, first + count))
    throw CacheFull("the draft head's KV cache is full; use shorter sequences or fewer at once");
  const size_t unasked = part.end() - part.rows->logits, end = part.next + part.count;
  const size_t asked = end > unasked ? std::min(part.count, end - unasked) : 0;
  rows_.push_back({state.context->slot(), first, count, static_cast<int64_t>(asked)});
}

// Stores the logits and hidden rows of a pass, and advances its parts.
void HeadForward::take(std::span<Part> parts, bool recycles) {
  const int64_t width = decoder_->spec().vocabulary;
  int64_t row = 0, logits = 0;
  size_t at = 0;
  for (Part& part : parts) {
    if (part.count == 0) continue;
    State& state = *part.state;
    row += static_cast<int64_t>(part.count);
    const int64_t asked = rows_[at++].logits;
    for (int64_t i = 0; i < asked; ++i, ++part.logits, ++logits)
      std::ranges::copy(decoder_->logits(logits), logits_.begin() + part.logits * width);
    const bool is_known = !recycles && state.source != nullptr && knows_feature(state, part.next);
    state.context->record(
        part.next, std::span(part.rows->tokens).subspan(part.next - part.rows->start, part.count));
    if (is_known && state.settled >= part.next) state.settled = part.next + part.count;
    part.next += part.count;
    state.hidden.resize(static_cast<size_t>(decoder_->spec().hidden));
    decoder_->recycle(row - 1, state.hidden);
    state.hidden_for = part.next;
  }
}

std::span<const float> HeadForward::own_logits(int64_t row) {
  const auto width = static_cast<size_t>(decoder_->spec().vocabulary);
  return std::span<const float>(logits_).subspan(static_cast<size_t>(row) * width, width);
}

}  // namespace specqd
