// Forwards of the core as Python uses them. Every use marks the model, its decoder and its cache.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "bindings/exclusive.h"
#include "bindings/python_roles.h"
#include "decode/forward.h"

namespace specqd {

// A model that releases the GIL while it computes.
template <class Forward>
class WithoutGil : public Forward {
 protected:
  using Forward::Forward;
  void run_concurrently(const std::function<void()>& work) override {
    const nb::gil_scoped_release released;
    work();
  }
};

class BoundForward : public WithoutGil<ModelForward> {
 public:
  BoundForward(std::shared_ptr<Decoder> decoder, std::shared_ptr<KvCache> cache,
               Precision precision, int64_t max_positions, std::shared_ptr<BoundForward> exact)
      : WithoutGil(decoder, cache, precision, max_positions, std::move(exact)),
        decoder_(decoder.get()),
        cache_(cache.get()) {}

  std::shared_ptr<Context> context(const SequencePtr& sequence) override {
    const Exclusive use(this, decoder_, cache_);
    return ModelForward::context(sequence);
  }
  void adopt(const Sequence& sequence, std::shared_ptr<Context> context) {
    const Exclusive use(this, decoder_, cache_);
    ModelForward::adopt(sequence, std::move(context));
  }
  void forward(std::span<const Rows> batch) override {
    Exclusive use(this, decoder_, cache_, &decoder_->partial_head());
    for (const Rows& rows : batch) use.take(rows.context.get());
    ModelForward::forward(batch);
  }
  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const SequencePtr& sequence) override {
    const Exclusive use(this, decoder_, cache_, &decoder_->partial_head(), sequence.get(),
                        sequence->picker.get());
    return ModelForward::verify(row, proposal, sequence);
  }
  void release(const SequencePtr& sequence) override {
    const Exclusive use(this, decoder_, cache_);
    ModelForward::release(sequence);
  }

 private:
  Decoder* decoder_;
  KvCache* cache_;
};

}  // namespace specqd
