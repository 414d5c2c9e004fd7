// Proposals while they are made, and whether another token of them pays.
//
// Knows what a level costs, how often it is right and what its tokens are worth to whoever asked;
// runs no model.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "draft/drafter.h"
#include "draft/economics.h"

namespace specqd {

// A proposal being made.
struct Draft {
  explicit Draft(const DraftRequest& request, int64_t longest)
      : request(request), longest(longest), confidence(request.confidence) {}

  DraftRequest request;
  int64_t longest;
  Proposal proposal;
  double product = 1.0;  // how likely all tokens so far are confirmed
  double confidence;     // in the last token
  bool is_done = false;
  bool is_alone = false;  // the drafter has nothing to say, and need not be asked again

  int64_t count() const { return std::ssize(proposal.tokens); }
  bool may_go_on() const { return !is_done && count() < longest; }
  // For what is left, at the chance that it will be reached at all.
  DraftRequest to_request() const;
  // Adds tokens up to the first that ends the text; the proposal ends there, or where there are
  // none.
  void add(Proposal step, std::span<const double> chances);
};

// What further rounds of a level are worth to whoever asked it, and what they cost.
//
// A level over a free drafter can weigh its own look at what that says against passing it on.
class DraftPolicy {
 public:
  // `costs`: of the level's forwards, and of picking from what they leave.
  explicit DraftPolicy(BatchCosts& costs);

  AcceptanceModel& acceptance(const Sequence& sequence) {
    return sequence.is_sampled ? sampled_ : greedy_;
  }
  ProbeBudget& probes() { return probes_; }

  // Something may be tried at once; what that costs was measured.
  void lend();
  // A round of the outer level has gone by: a share of it may go into trying.
  void begin(std::span<const DraftRequest> requests);
  // Whether a batch goes without drafts, so that whoever requests knows what that costs: what a
  // token is worth depends on it, and a batch that always drafts never finds out.
  bool is_pause(size_t count);
  // What a round for `count` sequences took overhead_s the level's own forward and picks, and made.
  void learn(size_t count, size_t made, int64_t rows, double overhead_s);
  // Whether no round would pay if all of its tokens were right, and none is to be tried.
  bool cannot_pay(std::span<const DraftRequest> requests);
  // Those of the drafts for which a round pays; all or none of a batch, but for single ones that
  // bring less than they cost whoever asked. Or all, to try it. `expected_proposal`: what the
  // drafter says, where it is free to request.
  std::vector<Draft*> should_draft(std::span<Draft* const> drafts,
                                   std::span<const Proposal> expected_proposal, Drafter& drafter);
  // How likely each token is right that is passed on without a look.
  std::vector<double> chances_unseen(const DraftRequest& request, std::vector<double> chances);

 private:
  double round_value(const Draft& draft, const Proposal& expected_proposal, double foreseen_each,
                     double cost, Drafter& drafter);
  double lookahead_value(const Draft& draft, double at, double worth, double follows, double cost,
                         bool is_free) const;
  double round_seconds(size_t count, double rows);
  double rows_each() const { return rows_.value().value_or(1.0); }

  BatchCosts& costs_;
  // At a temperature above 0, common noise makes the confidence of a token say less.
  AcceptanceModel greedy_, sampled_;
  // Of a round:
  std::map<int, Estimate> overhead_s_;  // seconds, by the size of the batch
  Mean rows_;                           // forwarded for each sequence
  Mean made_;                           // tokens made for each sequence
  ProbeBudget probes_;
  std::map<int, int64_t> asked_;  // times, by the size of the batch
};

}  // namespace specqd
