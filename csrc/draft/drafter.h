// Who proposes tokens. A drafter can be right or wrong, never harmful: a verifier checks it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "decode/sequence.h"
#include "draft/economics.h"

namespace specqd {

inline constexpr double kAlwaysDraft = std::numeric_limits<double>::infinity();

// A wish for tokens that continue a sequence, and what they are worth to whoever requests.
struct DraftRequest {
  std::shared_ptr<Sequence> sequence;
  int64_t at_most = 0;
  double token_value_s = kAlwaysDraft;  // seconds that one more accepted token saves
  double confidence = 1.0;              // the asker's in the token before, a hint about the next
  std::shared_ptr<RowCosts> costs;      // of the asker's forwards; null: its rows cost nothing
  int64_t rows = 1;                     // that it forwards anyway
  int64_t sharing = 1;  // sequences whose proposals it forwards together, this one's among them

  // What a proposal of so many tokens adds to verification, if the others are as long.
  double added_seconds(double count) const;
};

// Tokens that may come next, each with the probability that its proposer gave it.
struct Proposal {
  std::vector<int32_t> tokens;
  std::vector<double> confidences;
  int64_t row = 0;  // of the proposer's last logits, for the first token; the others follow
  std::vector<int32_t> depths{};  // by token: levels below its proposer; or none
  // What a level passed on from its own drafter without a look, each with its first token's place.
  std::vector<std::pair<size_t, std::shared_ptr<const Proposal>>> passed{};
  double tried = kAlwaysDraft;  // the place from which on it was made to learn if that pays

  bool is_empty() const { return tokens.empty(); }

  // Of the tokens that a verifier makes of this proposal, as seen from there: what it confirms came
  // from below, what follows is its own.
  std::vector<int32_t> depths_of(std::span<const int32_t> verified) const;
  // The same, as candidate by a level above that did not look at it.
  Proposal bypassed() const;
  void append(const Proposal& other);
  void cut(size_t length);  // keeps the first tokens only
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // One proposal per request, of at most `at_most` tokens; none is a fine answer.
  virtual std::vector<Proposal> propose(std::span<const DraftRequest> requests) = 0;
  // Learns that verification confirmed the first `accepted` tokens of its proposal.
  virtual void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) = 0;
  // How likely each token of its proposal is right, given that those before it are.
  virtual std::vector<double> chances(const DraftRequest& request, const Proposal& proposal) = 0;
  // Forgets a sequence that has ended.
  virtual void release(const std::shared_ptr<Sequence>& sequence) = 0;
  // Whether proposals cost nothing to make: they can be weighed before they are used.
  virtual bool is_free() const = 0;
  // Whether it has nothing to say to this text as it stands, which asking it would only confirm.
  virtual bool is_silent(const Sequence&) const { return false; }
  // Learns what its forwards cost, if it makes any.
  virtual void measure() {}
};

// Plain decoding: nothing is ever proposed.
class NoDraft : public Drafter {
 public:
  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override {
    return std::vector<Proposal>(requests.size());
  }
  void observe(const DraftRequest&, const Proposal&, size_t) override {}
  std::vector<double> chances(const DraftRequest&, const Proposal&) override { return {}; }
  void release(const std::shared_ptr<Sequence>&) override {}
  bool is_free() const override { return true; }
  bool is_silent(const Sequence&) const override { return true; }
};

}  // namespace specqd
