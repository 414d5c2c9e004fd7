// Lets Python objects take roles of the core: any object with the methods that a level calls may be
// a drafter, a model or a grammar.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "draft/level.h"

namespace specqd {

using TokenList = std::vector<int32_t>;
using SequencePtr = std::shared_ptr<Sequence>;

inline void check_proposal(const Proposal& proposal) {
  const size_t count = proposal.tokens.size();
  if (proposal.confidences.size() != count ||
      (!proposal.depths.empty() && proposal.depths.size() != count))
    throw std::invalid_argument(
        "a proposal needs a confidence for each token, and a depth for each token or none");
}

// A clock in Python, which the caller keeps alive; by default the system's.
inline Level::Clock clock_of(nb::handle clock) {
  if (!clock.is_none()) return [clock] { return nb::cast<double>(clock()); };
  return [] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  };
}

// PythonDrafter and PythonModel do not own their object; the holder of the role keeps it alive.
class PythonDrafter : public Drafter {
 public:
  explicit PythonDrafter(nb::handle drafter) : drafter_(drafter) {}

  std::vector<Proposal> propose(std::span<const DraftRequest> requests) override {
    nb::list list;
    for (const DraftRequest& request : requests) list.append(nb::cast(request));
    auto proposals = nb::cast<std::vector<Proposal>>(drafter_.attr("propose")(list));
    if (proposals.size() != requests.size())
      throw std::invalid_argument("a drafter must answer each request with a proposal");
    for (Proposal& proposal : proposals) {
      check_proposal(proposal);
      proposal.reached = 1.0;
      for (const double confidence : proposal.confidences) proposal.reached *= confidence;
    }
    return proposals;
  }
  void observe(const DraftRequest& request, const Proposal& proposal, size_t accepted) override {
    drafter_.attr("observe")(request, proposal, accepted);
  }
  std::vector<Value> values(std::span<const DraftRequest> requests) override {
    nb::list list;
    for (const DraftRequest& request : requests) list.append(nb::cast(request));
    const auto pairs =
        nb::cast<std::vector<std::pair<double, double>>>(drafter_.attr("values")(list));
    if (pairs.size() != requests.size())
      throw std::invalid_argument("a drafter must give each request a value");
    std::vector<Value> values;
    for (const auto& [saved_s, tokens] : pairs) values.push_back({saved_s, tokens});
    return values;
  }
  void release(const SequencePtr& sequence) override { drafter_.attr("release")(sequence); }
  bool is_silent() const override {
    return nb::len(nb::handle(nb::object(drafter_.attr("levels")))) == 0;
  }
  void measure() override {
    for (const nb::handle first : nb::iter(nb::object(drafter_.attr("levels")))) {
      if (nb::isinstance<Level>(first)) nb::cast<Level*>(first)->measure();
      break;
    }
  }

 private:
  nb::handle drafter_;
};

class PythonModel : public LevelModel {
 public:
  explicit PythonModel(nb::handle model) : model_(model) {}

  int64_t vocabulary() const override { return number("vocabulary"); }
  int64_t max_positions() const override { return number("max_positions"); }
  int64_t max_rows() const override { return number("max_rows"); }
  std::shared_ptr<Context> context(const SequencePtr& sequence) override {
    return nb::cast<std::shared_ptr<Context>>(model_.attr("context")(sequence));
  }
  void forward(std::span<const Rows> batch) override {
    nb::list list;
    for (const Rows& rows : batch) list.append(nb::cast(rows));
    model_.attr("forward")(list);
  }
  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const SequencePtr& sequence) override {
    const TokenList proposed(proposal.begin(), proposal.end());
    auto [tokens, probabilities] = nb::cast<std::pair<TokenList, std::vector<double>>>(
        model_.attr("verify")(row, proposed, sequence));
    return {std::move(tokens), std::move(probabilities)};
  }
  void release(const SequencePtr& sequence) override { model_.attr("release")(sequence); }

 private:
  int64_t number(const char* name) const { return nb::cast<int64_t>(model_.attr(name)); }

  nb::handle model_;
};

using MaskRows = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

struct PythonGrammar : Grammar {
  explicit PythonGrammar(nb::object grammar) : grammar(std::move(grammar)) {}

  Masks masks(std::span<const int32_t> proposal) override {
    const auto rows =
        nb::cast<MaskRows>(grammar.attr("masks")(TokenList(proposal.begin(), proposal.end())));
    if (rows.shape(0) != proposal.size() + 1)
      throw std::invalid_argument("masks must be [proposal + 1, vocabulary / 32]");
    return {{rows.data(), rows.data() + rows.size()}, static_cast<int64_t>(rows.shape(1))};
  }

  nb::object grammar;
};

// Keeps pages by a Python object. The object must not refer to the forward that uses it: Python's
// garbage collector would not see this cycle, and neither would ever be freed.
class PythonPageStore : public PageStore {
 public:
  explicit PythonPageStore(nb::object store) : store_(std::move(store)) {}

  void restore(int64_t key, std::span<const int32_t> tokens, uint64_t salt) override {
    store_.attr("restore")(key, array_of(tokens), salt);
  }
  void keep(int slot, std::span<const int32_t> tokens, uint64_t salt) override {
    store_.attr("keep")(slot, array_of(tokens), salt);
  }

 private:
  static nb::object array_of(std::span<const int32_t> tokens) {
    const nb::ndarray<nb::numpy, const int32_t, nb::ndim<1>> view(tokens.data(), {tokens.size()});
    return nb::cast(view, nb::rv_policy::copy);
  }

  nb::object store_;
};

// Slots for Python's garbage collector, because the Python objects that a bound class holds may
// refer to it. Its each_object(f) calls f for each of them.
template <class Holder>
struct Collected {
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    int result = 0;
    nb::inst_ptr<Holder>(self)->each_object([&](nb::object& object) {
      if (result == 0 && object.is_valid()) result = visit(object.ptr(), arg);
    });
    return result;
  }
  static int clear(PyObject* self) {
    if (nb::inst_ready(self))
      nb::inst_ptr<Holder>(self)->each_object([](nb::object& object) { object.reset(); });
    return 0;
  }
  static inline PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                       {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                                       {0, nullptr}};
};

// Keeps a Python object alive, and gives the role that the core calls: the object itself or an
// adapter.
template <class Role, class Python>
struct Part {
  explicit Part(nb::object given) : object(std::move(given)) {
    if (nb::isinstance<Role>(object)) {
      role = nb::cast<Role*>(object);
    } else {
      made = std::make_unique<Python>(object);
      role = made.get();
    }
  }

  nb::object object;
  std::unique_ptr<Python> made;
  Role* role;
};

}  // namespace specqd
