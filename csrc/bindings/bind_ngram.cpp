// The n-gram index, as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "draft/ngram.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace specqd {
namespace {

using TokenList = std::vector<int32_t>;

void append(NgramIndex& index, const TokenList& tokens) {
  if (tokens.size() > INT32_MAX - index.size() - 1)
    throw std::invalid_argument("an index holds at most 2^31 tokens");
  for (const int32_t token : tokens)
    if (token < 0) throw std::invalid_argument("tokens are not negative");
  index.append(tokens);
}

}  // namespace

void bind_ngram(nb::module_& m) {
  m.attr("LONGEST_MATCH") = kLongestMatch;
  m.attr("MOST_PLACES") = kMostPlaces;
  nb::class_<NgramIndex>(m, "NgramIndex",
                         "An index of grams: tokens that followed the same tokens earlier.")
      .def(nb::init<>())
      .def("__len__", &NgramIndex::size)
      .def_prop_ro("bytes", &NgramIndex::bytes, "Memory reserved.")
      .def("append", &append, "tokens"_a)
      .def("end_text", &NgramIndex::end_text,
           "Ends the sequence: the next tokens belong to another one.")
      .def(
          "propose",
          [](const NgramIndex& index, const TokenList& guesses, size_t most,
             const NgramIndex* corpus) -> std::pair<TokenList, std::vector<double>> {
            ScoredTokens found = index.propose(guesses, {most}, corpus);
            return {std::move(found.tokens), std::move(found.probabilities)};
          },
          "guesses"_a, "most"_a, "corpus"_a = nb::none(),
          "Returns at most `most` tokens that may follow the sequence and `guesses`, and their\n"
          "confidences.");
}

}  // namespace specqd
