// What a cache holds of a sequence, and rows to forward. Knows positions; knows no weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace specqd {

// What a model's cache holds of one sequence: keys and values of its first tokens.
//
// A fp4 precision's context begins where the exact one ends, and ends with the proposal: its
// provisional keys and values are overwritten by verification.
class Context {
 public:
  explicit Context(int slot, std::shared_ptr<Context> exact = nullptr)
      : slot_(slot), exact_(std::move(exact)) {}

  int slot() const { return slot_; }
  // Positions held.
  size_t length() const { return offset_ + tokens_.size(); }

  // Starts a proposal after `length` tokens.
  //
  // It forwards the last of them first, so the exact context keeps only what comes before. A
  // precision whose exact one was never forwarded goes on from its own last proposal.
  void begin(size_t length);

  // Forgets what is not a prefix of `tokens`; returns the positions left. The first `accepted`
  // tokens will not change any more, and are not compared again.
  size_t match(std::span<const int32_t> tokens, size_t accepted);

  // The cache now holds `tokens` from position `start` on, and nothing after them.
  void record(size_t start, std::span<const int32_t> tokens);

 private:
  int slot_;
  std::shared_ptr<Context> exact_;
  size_t offset_ = 0;  // positions before tokens_, which the exact context answers for
  std::vector<int32_t> tokens_;
  size_t settled_ = 0;  // of tokens_, those that equal accepted ones
};

// Tokens of one sequence to forward from position `start`; logits of the last `logits`.
struct Rows {
  std::shared_ptr<Context> context;
  size_t start;
  std::vector<int32_t> tokens;
  size_t logits;
};

}  // namespace specqd
