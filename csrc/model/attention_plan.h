// Divides the attention of a forward into passes, and passes into waves.
//
// A pass is a few rows of one sequence, and one chunk of 512 positions; it leaves a partial result
// for each of its rows. A wave is the passes whose partial results are in memory at once. Each
// row's partial results are merged in order of position, whatever the waves are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "model/page_choice.h"

namespace specqd {

// Consecutive rows of one sequence in a batch: batch rows [first_row, first_row + count) are
// positions [start, start + count).
struct SequenceRows {
  int sequence;
  int64_t start;
  int64_t count;
  int64_t first_row;
  const PageChoice* choice = nullptr;  // null: they attend to all pages
};

// The positions to which the rows of a layer attend: the last `window` up to their own (0: all),
// and those of the later rows of their sequence in the forward unless the layer is causal.
struct Reach {
  int64_t window = 0;
  bool is_causal = true;

  int64_t begin(int64_t position) const;
  int64_t end(const SequenceRows& rows, int64_t position) const;
};

class AttentionPlan {
 public:
  // Batch rows [first, last) of one sequence, whose positions share a page.
  struct PageRows {
    int64_t sequence;  // index into the planned sequences
    int64_t first, last;
  };
  struct Pass {
    int64_t sequence;  // likewise
    int64_t first;     // row within the sequence
    int64_t count;
    int64_t chunk;
    int64_t part;  // index of its first row's partial result in the wave
  };
  // The partial results of a row in one wave: those of chunks [end_chunk - count, end_chunk).
  struct RowParts {
    int64_t first = 0;  // its index in the wave; the others follow at `stride`
    int64_t stride = 0, count = 0, end_chunk = 0;
    bool is_first = false, is_last = false;  // whether other waves have earlier or later ones
  };

  // `longest` includes the reach of each layer. A pass has at most `rows_at_once` rows. A wave has
  // at most `most_parts` partial results, or those of one chunk.
  AttentionPlan(Reach longest, int64_t rows_at_once, int64_t most_parts);

  void make(std::span<const SequenceRows> sequences);

  std::span<const PageRows> page_rows() const { return page_rows_; }
  int64_t rows() const { return rows_; }
  int64_t waves() const { return std::ssize(wave_ends_); }
  // Passes of one chunk are consecutive, so that its keys and values stay in the CPU's cache.
  std::span<const Pass> passes(int64_t wave) const;
  const RowParts& parts_of(int64_t wave, int64_t row) const {
    return row_parts_[static_cast<size_t>(wave * rows_ + row)];
  }
  int64_t part_count() const { return part_count_; }    // of the wave that has most
  int64_t chunk_count() const { return chunk_count_; }  // of the row that has most

 private:
  struct Chunks {
    int64_t begin, end;
  };

  void plan_pages(int64_t index, const SequenceRows& rows);
  void plan_passes(int64_t index, const SequenceRows& rows);
  void add_passes(int64_t index, const SequenceRows& rows, Chunks chunks);
  void end_wave();
  Chunks chunks_of(const SequenceRows& rows, int64_t first) const;
  int64_t rows_of_pass(const SequenceRows& rows, int64_t first) const;

  const Reach longest_;
  const int64_t rows_at_once_, most_parts_;
  int64_t rows_ = 0, part_count_ = 0, chunk_count_ = 0;
  int64_t parts_ = 0;  // of the last wave
  std::vector<PageRows> page_rows_;
  std::vector<Pass> passes_;
  std::vector<size_t> wave_ends_;    // indices of passes
  std::vector<RowParts> row_parts_;  // [waves][rows]
};

}  // namespace specqd
