// The features of a sequence: what trained heads read of a model's forwards. Knows no tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specqd {

// Rows of BF16 values for consecutive positions, the last 512 to 1,024 that were written.
//
// A rejected position is written again before it is read, so a rollback is a shorter length, which
// the context of the sequence keeps.
class FeatureLog {
 public:
  static constexpr size_t kMostPositions = 1024;

  // Writes `count` rows from position `start`, and forgets all positions behind them.
  void write(size_t start, size_t count, std::span<const uint16_t> rows);

  // The positions [begin, end) are known.
  size_t begin() const { return begin_; }
  size_t end() const { return begin_ + versions_.size(); }
  std::span<const uint16_t> row(size_t position) const;

  size_t width() const { return width_; }       // values of a row
  int64_t version() const { return version_; }  // writes so far
  // The first position that was written after that version; end() if there is none.
  size_t first_after(int64_t version) const;

 private:
  size_t begin_ = 0, width_ = 0;
  int64_t version_ = 0;
  std::vector<int64_t> versions_;  // by position; they never fall
  std::vector<uint16_t> rows_;
};

}  // namespace specqd
