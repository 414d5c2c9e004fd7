// Binds block drafters.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bound_forward.h"
#include "bindings/python_roles.h"
#include "decode/block_forward.h"
#include "draft/block_drafter.h"

using namespace nanobind::literals;

namespace specqd {
namespace {

using BoundBlocks = Bound<BlockForward>;

void bind_block_forward(nb::module_& m) {
  nb::class_<BoundBlocks, DecoderForward>(
      m, "BlockForward",
      "Forwards a block drafter, which reads features of the model `above`. The first row of a\n"
      "block is the newest token, the others are the token `mask`; there are at most `block`.\n\n"
      "`boundaries` and `ids` are those of HeadForward.")
      .def(
          "__init__",
          [](BoundBlocks* self, std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
             bool is_draft, std::shared_ptr<BoundForward> above, std::vector<int64_t> boundaries,
             TokenList ids, int64_t block, int32_t mask) {
            const Exclusive use(above.get(), &above->decoder());
            new (self) BoundBlocks({decoder.get(), cache.get(), above.get()}, decoder, cache,
                                   precision_of(is_draft), above, std::move(boundaries),
                                   std::move(ids), block, mask);
          },
          "decoder"_a, "cache"_a, "is_draft"_a, "above"_a, "boundaries"_a, "ids"_a, "block"_a,
          "mask"_a)
      .def_prop_ro("block", &BlockForward::block, "The most rows of a block.")
      .def(
          "readiness",
          [](BoundBlocks& model, const Sequence& sequence) {
            const BlockForward::Readiness found = model.readiness(sequence);
            return std::tuple(found.is_ready, found.first, found.length, found.pending);
          },
          "sequence"_a,
          "Returns (is_ready, first, length, pending) of a sequence's context, as context() found\n"
          "it: whether it reaches the newest token, the positions [first, length) that it holds,\n"
          "and the number of known features that it lacks.")
      .def(
          "block_rows",
          [](BoundBlocks& model, const SequencePtr& sequence, int64_t count) {
            if (count < 2 || count > model.block())
              throw std::invalid_argument("a block has from 2 rows to those of `block`");
            return model.block_rows(sequence, count);
          },
          "sequence"_a, "count"_a, "Returns a block of `count` rows; all but the first get logits.")
      .def(
          "logits",
          [](BoundBlocks& model) {
            const Exclusive use(&model);
            return copy_logits(model, model.vocabulary());
          },
          "Returns a copy of the last forward's logits, [rows, vocabulary], ordered by the "
          "target's\n"
          "ids.");
}

class BoundBlockDrafter : public BlockDrafter {
 public:
  BoundBlockDrafter(nb::object model, std::optional<int64_t> length, std::string name,
                    nb::object clock)
      : BlockDrafter(nb::cast<BoundBlocks&>(model), length, clock_of(clock)),
        model_(std::move(model)),
        name_(std::move(name)),
        clock_(std::move(clock)) {}

  nb::object model() const { return model_; }
  const std::string& name() const { return name_; }

  template <class F>
  void each_object(const F& f) {
    f(model_);
    f(clock_);
  }

 private:
  nb::object model_;
  std::string name_;
  nb::object clock_;
};

void bind_block_drafter(nb::module_& m) {
  nb::class_<BoundBlockDrafter, Drafter>(
      m, "BlockDrafter", nb::type_slots(Collected<BoundBlockDrafter>::slots),
      "Drafts blocks of tokens, each in one forward of a BlockForward.\n\n"
      "`length` fixes the length of its proposals; None lets costs and acceptance decide.")
      .def(
          "__init__",
          [](BoundBlockDrafter* self, nb::object model, std::optional<int64_t> length,
             std::string name, nb::object clock) {
            new (self)
                BoundBlockDrafter(std::move(model), length, std::move(name), std::move(clock));
          },
          "model"_a, nb::kw_only(), "length"_a = nb::none(), "name"_a, "clock"_a = nb::none(),
          nb::sig("def __init__(self, model: BlockForward, *, length: int | None = None, "
                  "name: str, clock: collections.abc.Callable[[], float] | None = None) -> None"))
      .def_prop_ro("model", &BoundBlockDrafter::model, nb::sig("def model(self) -> typing.Any"))
      .def_prop_ro("length", &BoundBlockDrafter::length)
      .def_prop_ro("name", &BoundBlockDrafter::name)
      .def_prop_ro("stats", [](const BoundBlockDrafter& drafter) { return drafter.stats; })
      .def_prop_ro(
          "levels", [](nb::handle self) { return nb::make_tuple(self); },
          nb::sig("def levels(self) -> tuple[typing.Any, ...]"))
      .def("measure", exclusively<BoundBlockDrafter>(&BoundBlockDrafter::measure),
           "Measures forwards, so that the first request is drafted well.");
}

}  // namespace

void bind_blocks(nb::module_& m) {
  bind_block_forward(m);
  bind_block_drafter(m);
}

}  // namespace specqd
