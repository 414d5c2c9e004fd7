// Tracks what a cache holds of a sequence, and describes rows to forward. Knows no weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/features.h"

namespace specqd {

// The tokens of one sequence whose keys and values a model's cache holds.
//
// The fp4 precision's context begins where the exact one ends and ends with the proposal.
// Verification overwrites its provisional keys and values.
class Context {
 public:
  explicit Context(int slot, std::shared_ptr<Context> exact = nullptr)
      : slot_(slot), exact_(std::move(exact)) {}

  int slot() const { return slot_; }
  // The number of positions in the cache.
  size_t length() const { return offset_ + tokens_.size(); }

  // Starts a proposal after `length` tokens.
  //
  // The proposal's first forward takes the last of these tokens, so the exact context keeps only
  // the tokens before it. If the exact context is empty, this one continues from its own last
  // proposal.
  void begin(size_t length);

  // Forgets everything after the common prefix with `tokens`; returns the positions left. The first
  // `accepted` tokens never change, so later calls do not compare them again.
  size_t match(std::span<const int32_t> tokens, size_t accepted);

  // The positions below it hold accepted tokens, or will; once written, none is replaced.
  size_t settled() const;

  // Records that the cache holds `tokens` from position `start`, and nothing after them.
  void record(size_t start, std::span<const int32_t> tokens);

  // Features of the positions in the cache, where the model logs them; both precisions share them.
  FeatureLog& features() { return exact_ == nullptr ? features_ : exact_->features(); }

 private:
  int slot_;
  std::shared_ptr<Context> exact_;
  size_t offset_ = 0;  // positions before tokens_, which the exact context tracks
  std::vector<int32_t> tokens_;
  size_t settled_ = 0;   // the first tokens_ that equal accepted ones
  size_t accepted_ = 0;  // tokens of the sequence that never change
  FeatureLog features_;
};

// Tokens of one sequence to forward from position `start`; logits of the last `logits`.
struct Rows {
  std::shared_ptr<Context> context;
  size_t start;
  std::vector<int32_t> tokens;
  size_t logits;
};

}  // namespace specqd
