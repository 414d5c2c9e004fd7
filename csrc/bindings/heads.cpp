// Binds trained heads.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/bound_forward.h"
#include "decode/head_forward.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

// Every use marks the head, its decoder, its cache and the model above, whose features it reads.
class BoundHead : public WithoutGil<HeadForward> {
 public:
  BoundHead(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache, Precision precision,
            std::shared_ptr<BoundForward> above, std::vector<int64_t> boundaries, TokenList ids)
      : WithoutGil(decoder, cache, precision, above, std::move(boundaries), std::move(ids)),
        decoder_(decoder.get()),
        cache_(cache.get()),
        above_(above.get()) {}

  std::shared_ptr<Context> context(const SequencePtr& sequence) override {
    const Exclusive use(this, decoder_, cache_, above_, sequence.get());
    return HeadForward::context(sequence);
  }
  void forward(std::span<const Rows> batch) override {
    Exclusive use(this, decoder_, cache_, above_, &decoder_->partial_head());
    for (const Rows& rows : batch) use.take(rows.context.get());
    HeadForward::forward(batch);
  }
  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const SequencePtr& sequence) override {
    const Exclusive use(this, decoder_, sequence.get(), sequence->picker.get());
    return HeadForward::verify(row, proposal, sequence);
  }
  void release(const SequencePtr& sequence) override {
    const Exclusive use(this, decoder_, cache_);
    HeadForward::release(sequence);
  }

 private:
  Decoder* decoder_;
  KvCache* cache_;
  BoundForward* above_;
};

}  // namespace

void bind_heads(nb::module_& m) {
  nb::class_<BoundHead, LevelModel>(
      m, "HeadForward",
      "Forwards a trained head below the model whose features it reads.\n\n"
      "`boundaries` are those of the model's taps that make a feature; it may tap more.\n"
      "`ids` are the target's ids of the head's own tokens, ascending; none: the same ids.")
      .def(
          "__init__",
          [](BoundHead* self, std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
             bool is_draft, std::shared_ptr<BoundForward> above, std::vector<int64_t> boundaries,
             TokenList ids) {
            new (self) BoundHead(std::move(decoder), std::move(cache),
                                 is_draft ? Precision::kFp4 : Precision::kExact, std::move(above),
                                 std::move(boundaries), std::move(ids));
          },
          "decoder"_a, "cache"_a, "is_draft"_a, "above"_a, "boundaries"_a, "ids"_a)
      .def_prop_ro("vocabulary", &BoundHead::vocabulary)
      .def_prop_ro("max_positions", &BoundHead::max_positions)
      .def_prop_ro("max_rows", &BoundHead::max_rows)
      .def_prop_ro("bytes_read", &BoundHead::bytes_read,
                   "Bytes of weights that all forwards so far have read.")
      .def_prop_ro("cache_bytes_read", &BoundHead::cache_bytes_read,
                   "Bytes of keys and values that all forwards so far have read.")
      .def("read_partial_head", exclusively<BoundHead>(&HeadForward::read_partial_head),
           "Later forwards read the partial head only; a head with ids of its own has no other.")
      .def("context", &BoundHead::context, "sequence"_a,
           "Returns the head's context for a sequence. Entries that were made from other features\n"
           "than the model above now has are forgotten.")
      .def(
          "forward", [](BoundHead& head, const std::vector<Rows>& batch) { head.forward(batch); },
          "batch"_a, "Caches all rows and leaves the asked logits, in the batch's order.")
      .def(
          "verify",
          [](BoundHead& head, int64_t row, const TokenList& proposal,
             const SequencePtr& sequence) -> std::pair<TokenList, std::vector<double>> {
            ScoredTokens answer = head.verify(row, proposal, sequence);
            return {std::move(answer.tokens), std::move(answer.probabilities)};
          },
          "row"_a, "proposal"_a, "sequence"_a,
          "Returns the next token and its probability; the proposal must be empty.")
      .def(
          "logits",
          [](BoundHead& head) {
            const Exclusive use(&head);
            const auto rows = static_cast<size_t>(head.logit_rows());
            std::vector<float> copy;
            for (size_t row = 0; row < rows; ++row) {
              const auto logits = head.logits(static_cast<int64_t>(row));
              copy.insert(copy.end(), logits.begin(), logits.end());
            }
            return owned_array(std::move(copy), {rows, static_cast<size_t>(head.vocabulary())});
          },
          "Returns a copy of the last forward's logits by the target's ids, [rows, vocabulary].")
      .def("release", &BoundHead::release, "sequence"_a);
}

}  // namespace specqd
