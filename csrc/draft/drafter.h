// Drafters: what proposes tokens. A rejected proposal costs time but changes no token, because
// proposals are verified.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "decode/sequence.h"
#include "draft/costs.h"

namespace specqd {

inline constexpr int64_t kLongestProposal = 32;  // tokens, where no length is fixed

// A token value at which every draft pays.
inline constexpr double kAlwaysDraft = std::numeric_limits<double>::infinity();

inline constexpr int64_t kAllTokens = std::numeric_limits<int64_t>::max();

// A request for tokens that continue a sequence, with their value to the verifier.
struct DraftRequest {
  std::shared_ptr<Sequence> sequence;
  int64_t at_most = 0;                  // tokens
  double token_value_s = kAlwaysDraft;  // seconds that one more accepted token saves
  double confidence = 1.0;              // the verifier's in the token before the proposal
  std::shared_ptr<RowCosts> costs;      // of the verifier's forwards; null: its rows are free
  int64_t rows = 1;                     // rows of that forward without this batch's proposals
  int64_t sharing = 1;                  // sequences of that forward, this one included
  // Tokens to read, at most, of those before the last one that the verifier's cache does not hold.
  // If some are left, nothing is drafted or sampled.
  int64_t reads = kAllTokens;
  int64_t scores = 0;  // the last so many of the tokens read get logits

  // Whether it asks for a proposal's first tokens: not for more after those of another drafter.
  bool is_first() const { return rows == sharing; }
  // Seconds of verification for each sequence, if proposals of all have `count` tokens.
  double verification_seconds(double count) const;
  // Those of them that the proposals add.
  double added_seconds(double count) const {
    return verification_seconds(count) - verification_seconds(0.0);
  }
};

// Tokens that may come next, each with the probability that its drafter gave it.
struct Proposal {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  std::vector<int32_t> tokens;
  std::vector<double> confidences;
  int64_t row = 0;  // of the drafter's last logits, for the first token; the others follow
  std::vector<int32_t> depths{};  // by token: members of the chain above its author; or none
  int64_t probe_from = kNever;    // tokens from here on did not seem to pay, and were tried
  double reached = 1.0;           // the chance that all tokens are accepted, as the drafter has it
  // A verifier states how many tokens of the proposal it verified, and how many it accepted.
  int64_t drafted = 0, accepted = 0;

  bool is_empty() const { return tokens.empty(); }

  // Depths of the tokens that a verifier makes of this proposal, as seen from the verifier.
  std::vector<int32_t> depths_of(std::span<const int32_t> verified) const;
  void append(const Proposal& other);
  void cut(size_t length);  // keeps the first `length` tokens
};

// What a drafter's next proposal is expected to be worth to the verifier.
struct Value {
  double saved_s = 0.0;  // seconds, net of all costs; 0 if it proposes nothing. Finite.
  double tokens = 0.0;   // accepted ones
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // One proposal for each request, of at most `at_most` tokens; it may be empty.
  virtual std::vector<Proposal> propose(std::span<const DraftRequest> requests) = 0;
  // What `propose` is expected to be worth to each request.
  virtual std::vector<Value> values(std::span<const DraftRequest> requests) = 0;
  // The verifier has read parts of the prompts of these sequences. A drafter that needs features
  // may take them before they are forgotten.
  virtual void follow(std::span<const std::shared_ptr<Sequence>> sequences) { (void)sequences; }
  // Learns that verification accepted the first `accepted` tokens of its proposal.
  virtual void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) = 0;
  // Forgets a sequence that has ended, or was preempted and will begin again.
  virtual void release(const std::shared_ptr<Sequence>& sequence) = 0;
  // Measures what its forwards cost, if it makes any.
  virtual void measure() {}
  // Whether it never proposes anything.
  virtual bool is_silent() const { return false; }
};

// Plain decoding: nothing is ever proposed.
class NoDraft : public Drafter {
 public:
  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override {
    return std::vector<Proposal>(requests.size());
  }
  std::vector<Value> values(std::span<const DraftRequest> requests) override {
    return std::vector<Value>(requests.size());
  }
  void observe(const DraftRequest&, const Proposal&, size_t) override {}
  void release(const std::shared_ptr<Sequence>&) override {}
  bool is_silent() const override { return true; }
};

}  // namespace specqd
