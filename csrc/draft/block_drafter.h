// The drafter that makes a whole block of tokens in one forward of a small model.
//
// Knows what blocks cost, and how their tokens fared by place; knows no weights.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "decode/block_forward.h"
#include "draft/costs.h"
#include "draft/drafter.h"
#include "draft/level.h"
#include "draft/places.h"

namespace specqd {

// Drafts blocks. `length` fixes the number of tokens of a proposal; without it, expected acceptance
// and measured costs decide how many rows a block has, and then how many tokens are proposed.
class BlockDrafter : public Drafter {
 public:
  using Clock = std::function<double()>;  // seconds

  BlockDrafter(BlockForward& model, std::optional<int64_t> length, Clock clock);

  LevelStats stats;

  std::optional<int64_t> length() const { return length_; }

  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override;
  std::vector<Value> values(std::span<const DraftRequest> requests) override;
  // Absorbs the features of prompts while the log has them.
  void follow(std::span<const std::shared_ptr<Sequence>> sequences) override;
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override;
  void release(const std::shared_ptr<Sequence>& sequence) override;
  void measure() override;

 private:
  // A token by each share of the noise, and which of them is proposed. If they are not compared,
  // all are that one.
  struct Drawn {
    std::array<int32_t, kNoiseShares.size()> tokens;
    size_t share;
    double stated;

    int32_t token() const { return tokens[share]; }
  };
  // The last block of a sequence.
  struct Block {
    size_t after;       // number of tokens before it
    int32_t newest;     // the last of them
    double confidence;  // the verifier's in that token
    bool is_compared;   // all shares of the noise were tried
    std::vector<Drawn> drawn{};
  };
  // What is to be done for a request.
  struct Plan {
    int64_t rows = 0;  // of a new block; 0: none is made
    Proposal known{};  // what the last block still predicts, if nothing was verified since
    Value value{};
    bool is_probe = false;
  };

  Plan plan(const DraftRequest& request, size_t count);
  void choose_rows(const DraftRequest& request, size_t count, int64_t longest, Plan& plan);
  Proposal rest_of(const Block& block, const DraftRequest& request, Value& value) const;
  bool keeps_all(const DraftRequest& request) const;
  int64_t longest(const DraftRequest& request) const;
  void learn(const Sequence& sequence, size_t verified);
  void probe(std::span<const DraftRequest> requests, std::span<Plan> plans);
  void make_blocks(std::span<const DraftRequest> requests, std::span<Plan> plans);
  void forward(std::span<const Rows> batch);
  void make(std::span<const DraftRequest> requests, std::span<Plan> plans,
            std::span<const size_t> chosen);
  Block sample(const DraftRequest& request, int64_t row, int64_t count);
  std::optional<Drawn> draw(const DraftRequest& request, int64_t row, size_t place, bool compares);

  BlockForward& model_;
  std::optional<int64_t> length_;
  Clock clock_;
  BatchCosts costs_;  // of forwards, and of sampling from their logits
  PlaceAcceptance acceptance_;
  NoiseChoice noise_;
  int64_t sampled_blocks_ = 0;  // at a temperature above 0
  ProbeBudget probes_;
  bool is_measured_ = false;
  std::unordered_map<int64_t, Block> blocks_;  // by sequence
};

}  // namespace specqd
