// Binds draft heads.
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
      "Forwards a trained draft head, which reads features of the model `above`. It verifies no\n"
      "drafts, so a proposal must be empty.\n\n"
      "`boundaries` are the layer boundaries that make a feature. The model logs them from now "
      "on.\n"
      "`ids` are the target's ids of the head's tokens, ascending; empty if they are the same. A\n"
      "head with its own ids reads its whole output head.")
      .def(
          "__init__",
          [](BoundHead* self, std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
             bool is_draft, std::shared_ptr<BoundForward> above, std::vector<int64_t> boundaries,
             TokenList ids) {
            const Exclusive use(above.get(), &above->decoder());
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
          "Returns a copy of the last forward's logits, [rows, vocabulary], ordered by the "
          "target's "
          "ids.");
}

}  // namespace specqd
