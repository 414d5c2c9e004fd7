// Binds sequences, their contexts, and forwards.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/bound_forward.h"
#include "bindings/exclusive.h"
#include "bindings/python_roles.h"
#include "runtime/pool.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

size_t place_in(const Tokens& tokens, int64_t at) {
  const auto place = at < 0 ? at + std::ssize(tokens) : at;
  if (place < 0 || place >= std::ssize(tokens)) throw nb::index_error();
  return static_cast<size_t>(place);
}

PythonGrammar* grammar_of(const Sequence& sequence) {
  return static_cast<PythonGrammar*>(sequence.grammar.get());
}

// Python's garbage collector calls these two, because a grammar may refer to its sequence.
int traverse_sequence(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  if (const auto* const held = grammar_of(*nb::inst_ptr<Sequence>(self)))
    Py_VISIT(held->grammar.ptr());
  return 0;
}

int clear_sequence(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  nb::inst_ptr<Sequence>(self)->grammar.reset();
  return 0;
}

PyType_Slot sequence_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse_sequence)},
                                {Py_tp_clear, reinterpret_cast<void*>(&clear_sequence)},
                                {0, nullptr}};

void bind_tokens(nb::module_& m) {
  nb::class_<Tokens>(m, "Tokens", "A sequence's tokens: a list that grows at its end.")
      .def("__len__", [](const Tokens& tokens) { return tokens.size(); })
      .def("__getitem__",
           [](const Tokens& tokens, int64_t at) { return tokens[place_in(tokens, at)]; })
      .def("__getitem__",
           [](const Tokens& tokens, const nb::slice& slice) {
             auto [at, stop, step, count] = slice.compute(tokens.size());
             TokenList part;
             for (; count > 0; --count, at += step) part.push_back(tokens[static_cast<size_t>(at)]);
             return part;
           })
      .def(
          "__iter__", [](const Tokens& tokens) { return nb::iter(nb::cast(TokenList(tokens))); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[int]"))
      .def("__eq__",
           [](const Tokens& tokens, nb::handle other) {
             TokenList list;
             return nb::try_cast(other, list) && list == tokens;
           })
      .def(
          "append",
          [](Tokens& tokens, int32_t token) {
            const Exclusive use(&tokens);
            tokens.push_back(token);
          },
          "token"_a)
      .def(
          "extend",
          [](Tokens& tokens, const TokenList& more) {
            const Exclusive use(&tokens);
            tokens.insert(tokens.end(), more.begin(), more.end());
          },
          "tokens"_a);
  nb::class_<Sequence>(
      m, "Sequence", nb::type_slots(sequence_slots),
      "The tokens of one of the n samples of a request. While a level drafts, its guesses are at\n"
      "the end.")
      .def(
          "__init__",
          [](Sequence* self, const TokenList& tokens, std::shared_ptr<Sampler> sampler,
             int64_t prompt_length, bool is_sampled, bool needs_history, nb::object grammar,
             std::set<int32_t> stop_ids) {
            new (self) Sequence(tokens, std::move(sampler), prompt_length);
            self->is_sampled = is_sampled;
            self->needs_history = needs_history;
            if (!grammar.is_none()) self->grammar = std::make_shared<PythonGrammar>(grammar);
            self->stop_ids = std::move(stop_ids);
          },
          "tokens"_a, "sampler"_a, "prompt_length"_a, nb::kw_only(), "is_sampled"_a = false,
          "needs_history"_a = false, "grammar"_a = nb::none(), "stop_ids"_a = std::set<int32_t>(),
          nb::sig("def __init__(self, tokens: collections.abc.Sequence[int], sampler: Sampler, "
                  "prompt_length: int, *, is_sampled: bool = False, needs_history: bool = False, "
                  "grammar: typing.Any = None, "
                  "stop_ids: collections.abc.Set[int] = frozenset()) -> None"))
      .def_prop_ro(
          "tokens", [](Sequence& sequence) -> Tokens& { return sequence.tokens; },
          nb::rv_policy::reference_internal)
      .def_ro("sampler", &Sequence::sampler)
      .def_ro("prompt_length", &Sequence::prompt_length)
      .def_rw("stop_ids", &Sequence::stop_ids)
      .def_rw("cache_salt", &Sequence::cache_salt)
      .def_rw("reuses_prefixes", &Sequence::reuses_prefixes)
      .def_rw("is_preempted", &Sequence::is_preempted)
      .def_rw("key", &Sequence::key)
      .def_prop_ro("num_accepted", &Sequence::num_accepted)
      .def_prop_rw(
          "grammar",
          [](const Sequence& sequence) -> nb::object {
            const auto* const held = grammar_of(sequence);
            return held == nullptr ? nb::none() : held->grammar;
          },
          [](Sequence& sequence, nb::object grammar) {
            const Exclusive use(&sequence);
            sequence.grammar =
                grammar.is_none() ? nullptr : std::make_shared<PythonGrammar>(grammar);
          },
          nb::arg().none(), nb::for_getter(nb::sig("def grammar(self) -> typing.Any")),
          nb::for_setter(nb::sig("def grammar(self, arg: typing.Any, /) -> None")))
      .def("is_stop", &Sequence::is_stop, "token"_a)
      .def("guess", exclusively<Sequence>(&Sequence::guess), "tokens"_a)
      .def(
          "forget_guesses",
          [](Sequence& sequence, size_t count) {
            const Exclusive use(&sequence);
            if (count > sequence.num_guesses)
              throw std::invalid_argument("count is larger than the number of guesses");
            sequence.forget_guesses(count);
          },
          "count"_a, "Removes the last `count` guesses.")
      .def(
          "masks",
          [](const Sequence& sequence,
             const TokenList& proposal) -> std::optional<nb::ndarray<nb::numpy, uint32_t>> {
            Masks masks = sequence.masks(proposal);
            if (masks.width == 0) return std::nullopt;
            const auto width = static_cast<size_t>(masks.width);
            return owned_array(std::move(masks.words), {proposal.size() + 1, width});
          },
          "proposal"_a,
          "Returns bit masks, [proposal + 1, words], of the tokens that the grammar allows as the\n"
          "first token of the proposal and after each of its tokens; None without a grammar.");
}

void bind_forwards(nb::module_& m) {
  nb::class_<Context>(m, "Context", "Tracks the tokens of one sequence that a model's cache holds.")
      .def(nb::init<int, std::shared_ptr<Context>>(), "slot"_a, "exact"_a.none() = nb::none())
      .def_prop_ro("slot", &Context::slot)
      .def_prop_ro("length", &Context::length, "Number of positions in the cache.")
      .def("begin", exclusively<Context>(&Context::begin), "length"_a,
           "Starts a proposal after `length` tokens.")
      .def("match", exclusively<Context>(&Context::match), "tokens"_a, "accepted"_a,
           "Forgets everything after the common prefix with `tokens`, and returns the number of\n"
           "positions that are left. The first `accepted` tokens never change, so later calls do\n"
           "not compare them.")
      .def("record", exclusively<Context>(&Context::record), "start"_a, "tokens"_a,
           "Records that the cache holds `tokens` from position `start`, and nothing after them.")
      .def(
          "copy_logs",
          [](Context& context, Context& other) {
            const Exclusive use(&context, &other);
            context.features() = other.features();
            context.draft_pages() = other.draft_pages();
          },
          "other"_a,
          "Copies the logged features and the weights of pages of a context that begins with the\n"
          "same tokens.");
  nb::class_<Rows>(m, "Rows",
                   "Tokens to forward from position `start` on; the last `logits` get logits.")
      .def(nb::init<std::shared_ptr<Context>, size_t, TokenList, size_t>(), "context"_a, "start"_a,
           "tokens"_a, "logits"_a)
      .def_ro("context", &Rows::context)
      .def_ro("start", &Rows::start)
      .def_ro("tokens", &Rows::tokens)
      .def_ro("logits", &Rows::logits);
  nb::class_<LevelModel>(m, "LevelModel", "The interface of a model that a level uses.")
      .def_prop_ro("vocabulary", &LevelModel::vocabulary)
      .def_prop_ro("max_positions", &LevelModel::max_positions)
      .def_prop_ro("max_rows", &LevelModel::max_rows, "Most rows of logits per forward.")
      .def("context", &LevelModel::context, "sequence"_a,
           "Returns this model's context for a sequence; it is made on first use.")
      .def(
          "forward",
          [](LevelModel& model, const std::vector<Rows>& batch) { model.forward(batch); },
          "batch"_a,
          "Computes all rows and caches their keys and values. Keeps the requested logits, in the\n"
          "order of the batch.")
      .def(
          "verify",
          [](LevelModel& model, int64_t row, const TokenList& proposal,
             const SequencePtr& sequence) -> std::pair<TokenList, std::vector<double>> {
            ScoredTokens answer = model.verify(row, proposal, sequence);
            return {std::move(answer.tokens), std::move(answer.probabilities)};
          },
          "row"_a, "proposal"_a, "sequence"_a,
          "Verifies a proposal with the logits of the last forward from `row` on.\n\n"
          "Returns (tokens, probabilities) of the longest prefix of the proposal that equals the\n"
          "tokens which the model samples itself, and of the next token that it samples.")
      .def("release", &LevelModel::release, "sequence"_a)
      .def(
          "adopt_prefix", &LevelModel::adopt_prefix, "sequence"_a,
          "Lets a new sequence begin with pages that others have published. Returns the number of\n"
          "positions.")
      .def("publish", &LevelModel::publish, "sequence"_a,
           "Offers the full pages of accepted tokens to later sequences of the same salt.");
  nb::class_<DecoderForward, LevelModel>(m, "DecoderForward",
                                         "Forwards of one precision of a decoder over a cache.")
      .def_prop_ro("bytes_read", &DecoderForward::bytes_read,
                   "Bytes of weights that all forwards so far have read.")
      .def_prop_ro("cache_bytes_read", &DecoderForward::cache_bytes_read,
                   "Bytes of keys and values that all forwards so far have read.")
      .def_prop_ro("whole_cache_bytes", &DecoderForward::whole_cache_bytes,
                   "What `cache_bytes_read` would be if drafts read their whole context.")
      .def_prop_ro("bytes_per_forward", &DecoderForward::bytes_per_forward,
                   "Bytes of weights that a forward of one row reads. More rows may use more "
                   "experts.")
      .def("read_partial_head", exclusively<DecoderForward>(&DecoderForward::read_partial_head),
           "From now on, forwards read only the partial output head; by default, the whole one.")
      .def(
          "keep_pages",
          [](DecoderForward& forward, nb::object store) {
            forward.keep_pages(std::make_shared<PythonPageStore>(std::move(store)));
          },
          "store"_a,
          "From now on, `store` also keeps the published pages of the cache, and sequences begin\n"
          "with those that it has kept. It has two methods, restore(key, tokens, salt) and\n"
          "keep(slot, tokens, salt); the tokens are int32 [n].")
      .def(
          "draft_for",
          [](DecoderForward& forward, const Decoder& target) {
            const Exclusive use(&forward, &forward.decoder(), &target);
            forward.draft_for(target);
          },
          "target"_a,
          "Drafts for `target` from now on, from the part of the output head that its text "
          "suggests.\n"
          "A draft head with ids of its own reads its whole output head.");
  nb::class_<BoundForward, DecoderForward>(
      m, "ModelForward",
      "Forwards a whole model.\n\n"
      "Splits the rows into several forwards if one cannot take them; those with logits must fit\n"
      "into the last forward. Releases a sequence in the exact precision too.")
      .def(
          "__init__",
          [](BoundForward* self, std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
             bool is_draft, int64_t max_positions, std::shared_ptr<BoundForward> exact) {
            new (self) BoundForward({decoder.get(), cache.get()}, decoder, cache,
                                    precision_of(is_draft), max_positions, std::move(exact));
          },
          "decoder"_a, "cache"_a, "is_draft"_a, "max_positions"_a, "exact"_a.none() = nb::none())
      .def("forward_hidden", exclusively<BoundForward>(&ModelForward::forward_hidden), "batch"_a,
           "Like forward(), without the output head: the rows that would get logits leave the\n"
           "outputs of the final norm, Decoder.hidden().")
      .def("set_draft_context", exclusively<BoundForward>(&ModelForward::set_draft_context),
           "positions"_a.none(),
           "Limits the positions of a context that drafts read, in both precisions; 0: no limit.\n"
           "By default, 1,536 or so many that the weights remain most of what a draft reads.")
      .def("adopt", exclusively<BoundForward>(&ModelForward::adopt), "sequence"_a, "context"_a,
           "Sets the context from which a sequence continues.");
}

void translate(const std::exception_ptr& thrown, void*) {
  const auto raise = [](const char* name, const std::exception& error) {
    PyErr_SetString(nb::module_::import_("specqd.errors").attr(name).ptr(), error.what());
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const CacheFull& error) {
    raise("CacheFullError", error);
  } catch (const TooManyRows& error) {
    raise("RequestError", error);
  } catch (const InUse& error) {
    raise("RequestError", error);
  } catch (const TooManyThreads& error) {
    raise("MachineError", error);
  }
}

}  // namespace

void bind_sequence(nb::module_& m) {
  nb::register_exception_translator(&translate);
  bind_tokens(m);
  bind_forwards(m);
}

}  // namespace specqd
