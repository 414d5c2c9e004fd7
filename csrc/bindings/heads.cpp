// Binds trained heads.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/bound_forward.h"
#include "decode/head_forward.h"

using namespace nanobind::literals;

namespace specqd {

void bind_heads(nb::module_& m) {
  using BoundHead = Bound<HeadForward>;
  nb::class_<BoundHead, DecoderForward>(
      m, "HeadForward",
      "Forwards a trained head below the model whose features it reads. It verifies nothing: a\n"
      "proposal must be empty.\n\n"
      "`boundaries` are those of the model's taps that make a feature; it may tap more.\n"
      "`ids` are the target's ids of the head's own tokens, ascending; none: the same ids. A head\n"
      "with ids of its own has no partial one.")
      .def(
          "__init__",
          [](BoundHead* self, std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
             bool is_draft, std::shared_ptr<BoundForward> above, std::vector<int64_t> boundaries,
             TokenList ids) {
            new (self)
                BoundHead({decoder.get(), cache.get(), above.get()}, decoder, cache,
                          precision_of(is_draft), above, std::move(boundaries), std::move(ids));
          },
          "decoder"_a, "cache"_a, "is_draft"_a, "above"_a, "boundaries"_a, "ids"_a)
      .def(
          "logits",
          [](BoundHead& head) {
            const Exclusive use(&head);
            return copy_logits(head, head.vocabulary());
          },
          "Returns a copy of the last forward's logits by the target's ids, [rows, vocabulary].");
}

}  // namespace specqd
