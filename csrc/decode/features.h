// The features of a sequence: the values at layer boundaries that draft heads read from a model's
// forwards. Knows no tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

// Rows of BF16 values for consecutive positions: the last 512 to 1,024 that were written.
//
// There is no rollback here. The sequence's context knows how many positions are valid, and a
// rejected position is written again before it is read.
class FeatureLog {
 public:
  static constexpr size_t kMostPositions = 1024;

  // Writes `count` rows [count][width] from position `start` on, and forgets all later positions.
  void write(size_t start, size_t count, std::span<const uint16_t> rows);

  // The log holds positions [begin, end).
  size_t begin() const { return begin_; }
  size_t end() const { return begin_ + versions_.size(); }
  bool is_empty() const { return versions_.empty(); }
  std::span<const uint16_t> row(size_t position) const;

  size_t width() const { return width_; }       // values per row
  int64_t version() const { return version_; }  // number of writes so far
  // The first position that was written after the log had that version; end() if there is none.
  size_t first_after(int64_t version) const;

 private:
  size_t begin_ = 0, width_ = 0;
  int64_t version_ = 0;
  std::vector<int64_t> versions_;  // by position, in ascending order
  std::vector<uint16_t> rows_;
};

}  // namespace specqd
