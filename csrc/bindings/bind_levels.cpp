// Levels, drafters and what they pass to each other, as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/exclusive.h"
#include "bindings/python_roles.h"
#include "draft/choice.h"
#include "draft/ngram_drafter.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

using DraftRequests = std::vector<DraftRequest>;

// Marks a drafter and the sequences of its requests.
class DrafterUse : public Exclusive {
 public:
  DrafterUse(const Drafter& drafter, const DraftRequests& requests) : Exclusive(&drafter) {
    for (const DraftRequest& request : requests) take(request.sequence.get());
  }
};

using DrafterPart = Part<Drafter, PythonDrafter>;

// A drafter's members of the chain, itself among them, outermost first.
nb::tuple levels_of(nb::handle drafter) { return nb::borrow<nb::tuple>(drafter.attr("levels")); }

// Alternative drafters, kept alive with the choice. A drafter that occurs twice, at any depth, is
// one member of the chain.
class BoundChoice : public DraftChoice {
 public:
  explicit BoundChoice(const std::vector<nb::object>& drafters) : BoundChoice(parts_of(drafters)) {}
  BoundChoice(const BoundChoice&) = delete;

  nb::tuple drafters() const {
    nb::list all;
    for (const DrafterPart& part : parts_) all.append(part.object);
    return nb::tuple(all);
  }
  nb::tuple levels() const { return nb::tuple(members(parts_)); }

  template <class F>
  void each_object(const F& f) {
    for (DrafterPart& part : parts_) f(part.object);
  }

 private:
  explicit BoundChoice(std::vector<DrafterPart> parts)
      : DraftChoice(candidates_of(parts)), parts_(std::move(parts)) {}

  static std::vector<DrafterPart> parts_of(const std::vector<nb::object>& drafters) {
    std::vector<DrafterPart> parts;
    for (const nb::object& drafter : drafters) parts.emplace_back(drafter);
    return parts;
  }
  static nb::list members(const std::vector<DrafterPart>& parts) {
    nb::list all;
    for (const DrafterPart& part : parts)
      for (const nb::handle member : levels_of(part.object))
        if (index_of(all, member) == nb::len(all)) all.append(member);
    return all;
  }
  static size_t index_of(const nb::list& all, nb::handle member) {
    size_t i = 0;
    while (i < nb::len(all) && !all[i].is(member)) ++i;
    return i;
  }
  static std::vector<Candidate> candidates_of(const std::vector<DrafterPart>& parts) {
    const nb::list all = members(parts);
    std::vector<Candidate> candidates;
    for (const DrafterPart& part : parts) {
      const nb::tuple own = levels_of(part.object);
      const size_t depth = nb::len(own) == 0 ? 0 : index_of(all, own[0]);
      candidates.push_back({part.role, static_cast<int32_t>(depth)});
    }
    return candidates;
  }

  std::vector<DrafterPart> parts_;
};

class BoundLevel : public Level {
 public:
  using ModelPart = Part<LevelModel, PythonModel>;

  BoundLevel(ModelPart model, DrafterPart drafter, std::optional<int64_t> length, std::string name,
             nb::object clock)
      : Level(*model.role, *drafter.role, length, clock_of(clock)),
        model_(std::move(model)),
        drafter_(std::move(drafter)),
        name_(std::move(name)),
        clock_(std::move(clock)) {}

  nb::object model() const { return model_.object; }
  nb::object drafter() const { return drafter_.object; }
  const std::string& name() const { return name_; }
  void replace_drafter(nb::object drafter) {
    const Exclusive use(this);
    drafter_ = DrafterPart(std::move(drafter));
    set_drafter(*drafter_.role);
  }

  template <class F>
  void each_object(const F& f) {
    f(model_.object);
    f(drafter_.object);
    f(clock_);
  }

 private:
  ModelPart model_;
  DrafterPart drafter_;
  std::string name_;
  nb::object clock_;
};

void bind_requests(nb::module_& m) {
  nb::class_<DraftRequest>(
      m, "DraftRequest",
      "A request for tokens that continue a sequence, with their value to the verifier.")
      .def(nb::init<SequencePtr, int64_t, double, double, std::shared_ptr<RowCosts>, int64_t,
                    int64_t, int64_t, int64_t>(),
           "sequence"_a, "at_most"_a, "token_value_s"_a = kAlwaysDraft, "confidence"_a = 1.0,
           "costs"_a.none() = nb::none(), "rows"_a = 1, "sharing"_a = 1, "reads"_a = kAllTokens,
           "scores"_a = 0)
      .def_ro("sequence", &DraftRequest::sequence)
      .def_ro("at_most", &DraftRequest::at_most)
      .def_ro("token_value_s", &DraftRequest::token_value_s,
              "Seconds that one more accepted token saves.")
      .def_ro("confidence", &DraftRequest::confidence)
      .def_ro("costs", &DraftRequest::costs)
      .def_ro("rows", &DraftRequest::rows)
      .def_ro("sharing", &DraftRequest::sharing)
      .def_ro("reads", &DraftRequest::reads,
              "The most tokens to read before the last one. If some are left, nothing is sampled.")
      .def_ro("scores", &DraftRequest::scores, "The last so many of the tokens read get logits.")
      .def(
          "changed",
          [](DraftRequest request, std::optional<int64_t> at_most,
             std::optional<double> token_value_s) {
            request.at_most = at_most.value_or(request.at_most);
            request.token_value_s = token_value_s.value_or(request.token_value_s);
            return request;
          },
          nb::kw_only(), "at_most"_a = nb::none(), "token_value_s"_a = nb::none(),
          "Returns a copy with these fields replaced.")
      .def("added_seconds", &DraftRequest::added_seconds, "count"_a,
           "Returns the seconds that a proposal of `count` tokens adds to verification, if those "
           "of\n"
           "the other sequences are as long.");
  nb::class_<Proposal>(m, "Proposal",
                       "Tokens that may come next, each with the probability its proposer gave it.")
      .def(
          "__init__",
          [](Proposal* self, TokenList tokens, std::vector<double> confidences, int64_t row,
             TokenList depths) {
            new (self) Proposal{std::move(tokens), std::move(confidences), row, std::move(depths)};
            check_proposal(*self);
          },
          "tokens"_a = TokenList(), "confidences"_a = std::vector<double>(), "row"_a = 0,
          "depths"_a = TokenList())
      .def_ro("tokens", &Proposal::tokens)
      .def_ro("confidences", &Proposal::confidences)
      .def_ro("row", &Proposal::row, "The row of the drafter's last logits for the first token.")
      .def_ro("depths", &Proposal::depths,
              "By token: the number of members of the chain above the one that made it; or empty.")
      .def_ro(
          "drafted", &Proposal::drafted,
          "From a verifier: the number of tokens of the proposal that it verified, whether they\n"
          "were accepted or rejected.")
      .def_ro("accepted", &Proposal::accepted, "From a verifier: those of them it accepted.")
      .def(
          "depths_of",
          [](const Proposal& proposal, const TokenList& verified) {
            return proposal.depths_of(verified);
          },
          "verified"_a,
          "Returns the depths of the tokens that a verifier makes of this proposal, counted from "
          "the\nverifier.");
}

nb::tuple alone(nb::handle self) { return nb::make_tuple(self); }

std::unique_ptr<const NgramIndex> index_of(const std::vector<TokenList>& corpus) {
  if (corpus.empty()) return nullptr;
  auto index = std::make_unique<NgramIndex>();
  for (const TokenList& text : corpus) {
    index->append(text);
    index->end_text();
  }
  return index;
}

const char* const kLevels = "def levels(self) -> tuple[typing.Any, ...]";

void bind_drafters(nb::module_& m) {
  nb::class_<Drafter>(m, "Drafter", "A drafter of the core.")
      .def(
          "propose",
          [](Drafter& drafter, const DraftRequests& requests) {
            const DrafterUse use(drafter, requests);
            return drafter.propose(requests);
          },
          "requests"_a, "Returns one proposal for each request, of at most `at_most` tokens.")
      .def(
          "values",
          [](Drafter& drafter, const DraftRequests& requests) {
            const DrafterUse use(drafter, requests);
            std::vector<std::pair<double, double>> pairs;
            for (const Value& value : drafter.values(requests))
              pairs.emplace_back(value.saved_s, value.tokens);
            return pairs;
          },
          "requests"_a,
          "Returns for each request the seconds that `propose` is expected to save, net of all\n"
          "costs, and the tokens of it that are expected to be accepted.")
      .def("observe", exclusively<Drafter>(&Drafter::observe), "request"_a, "proposal"_a,
           "accepted"_a,
           "Learns that verification accepted the first `accepted` tokens of its proposal.")
      .def("release", exclusively<Drafter>(&Drafter::release), "sequence"_a,
           "Forgets a sequence that has ended.");
  nb::class_<NoDraft, Drafter>(m, "NoDraft", "Plain decoding: nothing is ever proposed.")
      .def(nb::init<>())
      .def_prop_ro("levels", [](const NoDraft&) { return nb::tuple(); }, nb::sig(kLevels));
  nb::class_<NgramDrafter, Drafter>(
      m, "NgramDrafter",
      "Drafts from a sequence's own accepted tokens, and from a corpus that all sequences "
      "share.\n\n"
      "The texts of the corpus are token ids. They are used if they contain a longer match than "
      "the\n"
      "sequence itself. `length` fixes the number of tokens, as far as that many are known; None\n"
      "proposes those that are worth their rows.")
      .def(
          "__init__",
          [](NgramDrafter* self, const std::vector<TokenList>& corpus,
             std::optional<int64_t> length) { new (self) NgramDrafter(index_of(corpus), length); },
          nb::kw_only(), "corpus"_a = std::vector<TokenList>(), "length"_a = nb::none())
      .def_prop_ro("name", [](const NgramDrafter&) { return "ngram"; })
      .def_prop_ro("length", &NgramDrafter::length)
      .def_prop_ro("levels", &alone, nb::sig(kLevels));
  nb::class_<BoundChoice, Drafter>(
      m, "DraftChoice", nb::type_slots(Collected<BoundChoice>::slots),
      "Alternative drafters. At each place of a proposal, the one that is worth most continues.")
      .def(nb::init<const std::vector<nb::object>&>(), "drafters"_a)
      .def_prop_ro("drafters", &BoundChoice::drafters,
                   nb::sig("def drafters(self) -> tuple[typing.Any, ...]"))
      .def_prop_ro("levels", &BoundChoice::levels, nb::sig(kLevels));
}

void bind_level(nb::module_& m) {
  nb::class_<LevelStats>(m, "LevelStats", "Running counts of a level since it was made.")
      .def(nb::init<>())
      .def_ro("forwards", &LevelStats::forwards)
      .def_ro("rows", &LevelStats::rows)
      .def_ro("seconds", &LevelStats::seconds, "Seconds spent in this level's forwards.")
      .def_ro("pick_seconds", &LevelStats::pick_seconds)
      .def_ro("bytes_read", &LevelStats::bytes_read, "Bytes of weights that its forwards read.")
      .def_ro("cache_bytes_read", &LevelStats::cache_bytes_read,
              "Bytes of keys and values that its forwards read.")
      .def_ro("whole_cache_bytes", &LevelStats::whole_cache_bytes,
              "What `cache_bytes_read` would be if drafts read their whole context.")
      .def_ro("drafted", &LevelStats::drafted, "Tokens that its drafter proposed.")
      .def_ro("accepted", &LevelStats::accepted)
      .def_ro("accepted_at", &LevelStats::accepted_at, "Accepted tokens by place in the proposal.")
      .def_ro("drafted_at", &LevelStats::drafted_at)
      .def_ro("asked", &LevelStats::asked, "Requests to it as a drafter.")
      .def_ro("token_value_seconds", &LevelStats::token_value_seconds,
              "Sum of the token values of these requests.")
      .def("count", &LevelStats::count, "drafted"_a, "accepted"_a);
  nb::class_<BoundLevel, Drafter>(
      m, "Level", nb::type_slots(Collected<BoundLevel>::slots),
      "A verifier over a drafter, and itself a drafter. With NoDraft it decodes plainly.\n\n"
      "`length` fixes the length of its proposals as a drafter; None lets costs and acceptance\n"
      "decide (docs/design.md, \"When another draft token pays\").")
      .def(
          "__init__",
          [](BoundLevel* self, nb::object model, nb::object drafter, std::optional<int64_t> length,
             std::optional<std::string> name, nb::object clock) {
            if (!name) name = nb::cast<std::string>(model.attr("precision").attr("value"));
            new (self)
                BoundLevel(BoundLevel::ModelPart(std::move(model)), DrafterPart(std::move(drafter)),
                           length, std::move(*name), std::move(clock));
          },
          "model"_a, "drafter"_a, nb::kw_only(), "length"_a = nb::none(), "name"_a = nb::none(),
          "clock"_a = nb::none(),
          nb::sig("def __init__(self, model: typing.Any, drafter: typing.Any, *, "
                  "length: int | None = None, name: str | None = None, "
                  "clock: collections.abc.Callable[[], float] | None = None) -> None"))
      .def_prop_ro("model", &BoundLevel::model, nb::sig("def model(self) -> typing.Any"))
      .def_prop_rw("drafter", &BoundLevel::drafter, &BoundLevel::replace_drafter,
                   nb::for_getter(nb::sig("def drafter(self) -> typing.Any")),
                   nb::for_setter(nb::sig("def drafter(self, arg: typing.Any, /) -> None")))
      .def_prop_ro("length", &BoundLevel::length)
      .def_prop_ro("name", &BoundLevel::name)
      .def_prop_ro("stats", [](const BoundLevel& level) { return level.stats; })
      .def_prop_ro(
          "levels",
          [](nb::handle self) {
            const nb::object below = nb::cast<const BoundLevel&>(self).drafter().attr("levels");
            return alone(self) + nb::borrow<nb::tuple>(below);
          },
          nb::sig(kLevels), "This drafter and those below it, outermost first.")
      .def("measure", exclusively<BoundLevel>(&BoundLevel::measure),
           "Measures forwards, here and below, so that the first request is drafted well.")
      .def(
          "advance",
          [](BoundLevel& level, const DraftRequests& requests) {
            const DrafterUse use(level, requests);
            return level.advance(requests);
          },
          "requests"_a,
          "Makes at least one token for each request, in one forward.\n\n"
          "The tokens are the longest prefix of the drafter's proposal that this model would have\n"
          "sampled itself, and then its own next token. There are none if a grammar allows no\n"
          "token, or if the request leaves a part of the prompt unread.")
      .def("num_unread", exclusively<BoundLevel>(&BoundLevel::num_unread), "sequence"_a,
           "Returns the number of tokens before the last one that the model's cache does not hold.")
      .def(
          "tokens_within", &BoundLevel::tokens_within, "seconds"_a, "position"_a,
          "Returns the number of tokens from `position` on that a forward reads in so many seconds,"
          "\nbut at least 16, and at most the model's rows.")
      .def("seconds_per_token", &BoundLevel::seconds_per_token, "count"_a,
           "Returns the seconds that a token takes in a batch of `count` sequences.");
}

}  // namespace

void bind_levels(nb::module_& m) {
  m.attr("LONGEST_PROPOSAL") = kLongestProposal;
  bind_requests(m);
  bind_drafters(m);
  bind_level(m);
}

}  // namespace specqd
