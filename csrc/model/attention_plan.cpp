#include "model/attention_plan.h"

#include <algorithm>

#include "model/kv_cache.h"

namespace specqd {

int64_t Reach::begin(int64_t position) const {
  return window > 0 ? std::max<int64_t>(position + 1 - window, 0) : 0;
}

int64_t Reach::end(const SequenceRows& rows, int64_t position) const {
  return is_causal ? position + 1 : rows.start + rows.count;
}

AttentionPlan::AttentionPlan(Reach longest, int64_t rows_at_once, int64_t most_parts)
    : longest_(longest), rows_at_once_(rows_at_once), most_parts_(most_parts) {}

void AttentionPlan::make(std::span<const SequenceRows> sequences) {
  page_rows_.clear();
  passes_.clear();
  wave_ends_.clear();
  row_parts_.clear();
  rows_ = part_count_ = chunk_count_ = parts_ = 0;
  for (const SequenceRows& rows : sequences) rows_ += rows.count;
  for (const SequenceRows& rows : sequences) {
    const int64_t index = &rows - sequences.data();
    plan_pages(index, rows);
    plan_passes(index, rows);
  }
  end_wave();
}

std::span<const AttentionPlan::Pass> AttentionPlan::passes(int64_t wave) const {
  const auto at = static_cast<size_t>(wave);
  const size_t begin = at == 0 ? 0 : wave_ends_[at - 1];
  return std::span(passes_).subspan(begin, wave_ends_[at] - begin);
}

void AttentionPlan::plan_pages(int64_t index, const SequenceRows& rows) {
  for (int64_t first = 0, last; first < rows.count; first = last) {
    const int64_t position = rows.start + first;
    last = std::min(rows.count, first + kPagePositions - position % kPagePositions);
    page_rows_.push_back({index, rows.first_row + first, rows.first_row + last});
  }
}

// Takes as many chunks into a wave as it has room for. A wave has consecutive chunks of a sequence
// once, so that each of its rows has its partial results at one stride.
void AttentionPlan::plan_passes(int64_t index, const SequenceRows& rows) {
  if (rows.count == 0) return;
  const int64_t end = (rows.start + rows.count - 1) / kChunkPositions + 1;
  for (int64_t from = chunks_of(rows, 0).begin, to; from < end; from = to) {
    if (parts_ > 0 && parts_ + rows.count > most_parts_) end_wave();
    to = std::min(end, from + std::max<int64_t>(1, (most_parts_ - parts_) / rows.count));
    add_passes(index, rows, {from, to});
    if (to < end) end_wave();
  }
  chunk_count_ = std::max(chunk_count_, end);
}

void AttentionPlan::add_passes(int64_t index, const SequenceRows& rows, Chunks chunks) {
  row_parts_.resize(static_cast<size_t>((waves() + 1) * rows_));
  RowParts* const row_parts = row_parts_.data() + waves() * rows_ + rows.first_row;
  const int64_t parts = parts_;
  for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    int64_t part = parts;  // the first of the rows' own
    for (int64_t first = 0; first < rows.count; first += rows_at_once_) {
      const int64_t count = rows_of_pass(rows, first);
      const Chunks all = chunks_of(rows, first);
      const Chunks own{std::max(all.begin, chunks.begin), std::min(all.end, chunks.end)};
      if (own.begin >= own.end) continue;
      if (own.begin <= chunk && chunk < own.end)
        passes_.push_back({index, first, count, chunk, part + count * (chunk - own.begin)});
      if (chunk == own.begin)
        for (int64_t i = 0; i < count; ++i)
          row_parts[first + i] = {
              part + i,          count, own.end - own.begin, own.end, own.begin == all.begin,
              own.end == all.end};
      part += count * (own.end - own.begin);
    }
    parts_ = part;
  }
}

void AttentionPlan::end_wave() {
  wave_ends_.push_back(passes_.size());
  part_count_ = std::max(part_count_, parts_);
  parts_ = 0;
}

AttentionPlan::Chunks AttentionPlan::chunks_of(const SequenceRows& rows, int64_t first) const {
  const int64_t position = rows.start + first, last = position + rows_of_pass(rows, first) - 1;
  return {longest_.begin(position) / kChunkPositions,
          (longest_.end(rows, last) - 1) / kChunkPositions + 1};
}

int64_t AttentionPlan::rows_of_pass(const SequenceRows& rows, int64_t first) const {
  return std::min(rows_at_once_, rows.count - first);
}

}  // namespace specqd
