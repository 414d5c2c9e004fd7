// The forwards of the core in the form in which Python uses them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bindings/exclusive.h"
#include "bindings/python_roles.h"
#include "decode/forward.h"

namespace specqd {

// A forward that releases the GIL while it computes. Every use of it marks the forward itself and
// its `parts` as used: its decoder, its cache and the model above it.
template <class Forward>
class Bound : public Forward {
 public:
  template <class... Arguments>
  explicit Bound(std::vector<const void*> parts, Arguments... arguments)
      : Forward(std::move(arguments)...), parts_(std::move(parts)) {}

  std::shared_ptr<Context> context(const SequencePtr& sequence) override {
    const Use use(*this, sequence.get());
    return Forward::context(sequence);
  }
  void forward(std::span<const Rows> batch) override {
    Use use(*this, &this->decoder().output_head().partial_head());
    for (const Rows& rows : batch) use.take(rows.context.get());
    Forward::forward(batch);
  }
  ScoredTokens verify(int64_t row, std::span<const int32_t> proposal,
                      const SequencePtr& sequence) override {
    const Use use(*this, &this->decoder().output_head().partial_head(), sequence.get(),
                  sequence->sampler.get());
    return Forward::verify(row, proposal, sequence);
  }
  void release(const SequencePtr& sequence) override {
    const Use use(*this);
    Forward::release(sequence);
  }

 protected:
  void run_concurrently(const std::function<void()>& work) override {
    const nb::gil_scoped_release released;
    work();
  }

 private:
  struct Use : Exclusive {
    template <class... Objects>
    explicit Use(const Bound& forward, const Objects*... objects)
        : Exclusive(&forward, objects...) {
      for (const void* part : forward.parts_) take(part);
    }
  };

  std::vector<const void*> parts_;
};

using BoundForward = Bound<ModelForward>;

}  // namespace specqd
