// Tracks which tokens of a sequence a cache holds, and describes rows to forward. Knows no weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/draft_pages.h"
#include "decode/features.h"

namespace specqd {

// The tokens of one sequence whose keys and values are in a model's cache.
//
// In the fp4 precision, the context begins where the exact one ends, and ends with the proposal.
// Its keys and values are provisional: verification overwrites them.
class Context {
 public:
  explicit Context(int slot, std::shared_ptr<Context> exact = nullptr)
      : slot_(slot), exact_(std::move(exact)) {}

  int slot() const { return slot_; }
  // Whether it begins where the exact context ends, so that it never has to catch up but with the
  // proposal.
  bool follows_exact() const { return exact_ != nullptr && exact_->length() > 0; }
  // The number of positions in the cache.
  size_t length() const { return offset_ + tokens_.size(); }
  // The number of positions whose features are known. An exact context that has grown since this
  // one began its proposal has replaced the proposal.
  size_t current_length() const {
    return exact_ != nullptr && exact_->length() > offset_ ? exact_->length() : length();
  }

  // Starts a proposal after `length` tokens. Its later rows are provisional.
  //
  // The first forward of the proposal computes the last of these tokens again, so the exact context
  // keeps only the tokens before it. This context keeps what it has of the same proposal, which
  // other drafters may have continued meanwhile. If the exact context is empty, this one continues
  // from its own last proposal.
  void begin(size_t length);

  // Whether a row at this position belongs to the proposal, and so may read a part of the context.
  // If the exact context is empty, the proposal's first forward reads all.
  bool is_provisional(size_t position) const { return position >= provisional_from_; }
  // Whether it ever started a proposal.
  bool drafts() const { return provisional_from_ != kNowhere; }

  // Forgets everything after the common prefix with `tokens`, and returns the number of positions
  // that are left. The first `accepted` tokens never change, so later calls do not compare them.
  size_t match(std::span<const int32_t> tokens, size_t accepted);

  // The number of leading positions that belong to accepted tokens. Once written, they are never
  // replaced.
  size_t settled() const;

  // Records that the cache holds `tokens` from position `start`, and nothing after them.
  void record(size_t start, std::span<const int32_t> tokens);

  // The features of positions in the cache, if the model logs them. Both precisions use one log.
  FeatureLog& features() { return exact_ == nullptr ? features_ : exact_->features(); }
  // The pages that drafts read, which exact rows weigh.
  DraftPages& draft_pages() { return exact_ == nullptr ? draft_pages_ : exact_->draft_pages(); }

 private:
  void follow_exact();

  static constexpr size_t kNowhere = static_cast<size_t>(-1);

  int slot_;
  std::shared_ptr<Context> exact_;
  size_t offset_ = 0;  // positions before tokens_, which the exact context tracks
  std::vector<int32_t> tokens_;
  size_t settled_ = 0;   // how many of tokens_, from the first on, are accepted
  size_t accepted_ = 0;  // how many tokens of the sequence never change
  size_t provisional_from_ = kNowhere;
  FeatureLog features_;
  DraftPages draft_pages_;
};

// Tokens of one sequence to forward, from position `start` on. The last `logits` of them get
// logits.
struct Rows {
  std::shared_ptr<Context> context;
  size_t start;
  std::vector<int32_t> tokens;
  size_t logits;
};

}  // namespace specqd
