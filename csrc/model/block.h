// A block is one part of a layer and owns its weights. It keeps nothing of a forward: the rows and
// everything that they carry are in the Batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/layer_weights.h"

namespace specqd {

// What a block does with its outputs: it adds them to the residual stream, leaves them in
// Batch::aside, or adds both them and Batch::aside to the residual stream. With kCache, attention
// only writes keys and values into the cache: there are no outputs.
enum class Destination { kResidual, kAside, kWithAside, kCache };

// The rows that a block reads, normalised if there is a norm.
class RowInputs {
 public:
  RowInputs(const float* rows, int64_t stride) : rows_(rows), stride_(stride) {}
  RowInputs(const float* rows, int64_t stride, const Norm& norm, const Traits& traits)
      : rows_(rows), stride_(stride), norm_(norm.exists() ? &norm : nullptr), traits_(&traits) {}

  // Returns a row's values. `scratch` has room for them.
  const float* operator()(int64_t row, float* scratch) const {
    const float* const x = rows_ + row * stride_;
    if (norm_ == nullptr) return x;
    traits_->norm(*norm_, x, stride_, scratch);
    return scratch;
  }

 private:
  const float* rows_;
  int64_t stride_;
  const Norm* norm_ = nullptr;
  const Traits* traits_ = nullptr;
};

// A matrix that a block multiplies rows by.
struct BlockMatrix {
  const PackedWeight* weight;
  // The name under which its inputs are measured (LayerInputs of specqd.model.importance). If it is
  // empty, they are not measured.
  std::string inputs = {};
  int64_t inputs_per_row = 1;    // rows of inputs per row of the batch
  bool is_always_exact = false;  // drafts read its exact weights too
  // On average a row reads chosen / chosen_of of it, which is below 1 for experts.
  int64_t chosen = 1, chosen_of = 1;
};

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  virtual ~Block() = default;

  // Computes the block's outputs for all rows and leaves them where `to` says. `inputs` are the
  // rows that it reads. Every thread calls it; it ends with a barrier.
  virtual void run(Team& team, Batch& batch, const RowInputs& inputs, Destination to) const = 0;

  virtual std::vector<BlockMatrix> matrices() const = 0;
  virtual size_t scratch_bytes() const = 0;  // for Batch::max_rows rows
  // Words of keys and values that these rows read or write.
  virtual int64_t cache_words(std::span<const SequenceRows> sequences) const {
    (void)sequences;
    return 0;
  }
};

// Bytes of weights that every forward reads, and bytes that a forward of one row reads on average.
size_t fixed_bytes(std::span<const BlockMatrix> matrices, Precision precision);
size_t bytes_of_row(std::span<const BlockMatrix> matrices, Precision precision);

// Records the bits of all rows after a stage, if the batch has a record.
inline void record(Team& team, Batch& batch, const char* stage, const float* values, int64_t width,
                   int64_t stride) {
  if (batch.bits != nullptr) batch.bits->add(team, stage, values, batch.rows, width, stride);
}

}  // namespace specqd
