// Patches of nested tiles: the upper bytes of weights that no code and residual give. They are
// applied to a decoded tile; docs/kernels.md defines the format. A file may hold several patches of
// one weight. Then the last one counts, so whatever is applied twice here comes last.
#pragma once

#include "kernels/isa/lanes-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

// The upper byte of a weight by the lower byte of its patch: bit 6 is the sign, bits 5 to 0 are
// bits 13 to 8 of the weight, and bit 14 is zero. Bit 7 belongs to the position within the tile.
struct UpperBytes {
  uint8_t of_patch[256];
  constexpr UpperBytes() : of_patch() {
    for (int i = 0; i < 256; ++i) of_patch[i] = static_cast<uint8_t>((i & 0x40) << 1 | (i & 0x3f));
  }
};
constexpr UpperBytes kUpperBytes;

// The patches of one tile.
class TilePatches {
 public:
  [[gnu::always_inline]] void begin_tile(const PackedMatrix& w, int64_t tile) {
    at_ = w.patches + w.patch_starts[tile];
    count_ = w.patch_starts[tile + 1] - w.patch_starts[tile];
  }

 protected:
  const uint16_t* at_ = nullptr;
  int64_t count_ = 0;
};

[[gnu::always_inline]] inline void put_patch(unsigned patch, uint8_t* upper) {
  upper[(patch >> 7) * 2] = kUpperBytes.of_patch[patch & 0xff];
}

// The patches of one tile that are left to be applied in steps of four, beside other work. After
// kSteps of them, all are applied.
class PatchesLeft {
 public:
  static constexpr int kSteps = 8;

  // None: steps write to *unused.
  explicit PatchesLeft(uint8_t* unused) : next_(kNone), last_(kNone), upper_(unused) {}

  // Those of `tile`. What steps cannot apply is applied at once.
  PatchesLeft(const uint16_t* patches, int64_t count, uint16_t* tile, uint8_t* unused)
      : PatchesLeft(unused) {
    auto* const upper = reinterpret_cast<uint8_t*>(tile) + 1;
    if (count < 4) {
      for (int64_t i = 0; i < count; ++i) put_patch(patches[i], upper);
      return;
    }
    next_ = patches;
    last_ = patches + count - 4;
    upper_ = upper;
    for (; last_ - next_ > (kSteps - 1) * 4; ++next_) [[unlikely]]
      put_patch(*next_, upper);
  }

  // Applies the next four, or the last four again, in 64-bit registers: wide ones have other work.
  [[gnu::always_inline]] void step() {
    constexpr uint64_t kOnes = 0x0001000100010001u;
    uint64_t four;
    std::memcpy(&four, next_, sizeof(four));
    const uint64_t places = four >> 6 & kOnes * 0x3fe;
    const uint64_t bytes = (four & kOnes * 0x7f) + (four & kOnes * 0x40);
    for (int i = 0; i < 4; ++i)
      upper_[places >> (16 * i) & 0xffff] = static_cast<uint8_t>(bytes >> (16 * i));
    next_ = next_ + 4 < last_ ? next_ + 4 : last_;
  }

 private:
  static constexpr uint16_t kNone[4] = {};

  const uint16_t *next_, *last_;  // four patches each
  uint8_t* upper_;
};

// Applies them one after the other.
class PatchesInTurn : public TilePatches {
 public:
  [[gnu::always_inline]] void apply(uint16_t* tile) const {
    if (count_ > 0) put_all(at_, count_, reinterpret_cast<uint8_t*>(tile) + 1);
  }

  [[gnu::always_inline]] PatchesLeft left(uint16_t* tile, uint8_t* unused) const {
    return {at_, count_, tile, unused};
  }

 private:
  // Puts four at a time, the last four of which may overlap with others, because the end of a loop
  // over single patches would be predicted wrongly more often. Not inlined, so that it takes no
  // registers from its caller.
  [[gnu::noinline]] static void put_all(const uint16_t* patch, int64_t count, uint8_t* upper) {
    if (count < 4) {
      for (int64_t i = 0; i < count; ++i) put_patch(patch[i], upper);
      return;
    }
    const uint16_t* const last = patch + count - 4;
    for (; patch < last; patch += 4) put_four(patch, upper);
    put_four(last, upper);
  }
  [[gnu::always_inline]] static void put_four(const uint16_t* patches, uint8_t* upper) {
    for (int i = 0; i < 4; ++i) put_patch(patches[i], upper);
  }
};

// Maps patches to the place of that weight's upper byte in a decoded tile.
struct InTileOrder {
  static H16 upper_bytes(H16 patches) { return patches >> 6 | 1; }
};

// Applies them sixteen at a time. They pass from wide registers to narrow ones through memory,
// which is fast only where narrow loads need not wait for the wide store.
template <class Place>
class PatchesBySixteen : public TilePatches {
 public:
  // Reads the first sixteen patches when the tile begins, because a narrow load directly after a
  // wide store would wait for it.
  [[gnu::always_inline]] void begin_tile(const PackedMatrix& w, int64_t tile) {
    TilePatches::begin_tile(w, tile);
    first_.load(at_, count_);
  }

  [[gnu::always_inline]] void apply(uint16_t* tile) const {
    if (count_ == 0) return;
    first_.put(tile);
    for (int64_t i = 16; i < count_; i += 16) [[unlikely]] {
      Sixteen more;
      more.load(at_ + i, count_ - i);
      more.put(tile);
    }
  }

 private:
  struct Sixteen {
    alignas(32) uint16_t place[16], byte[16];

    // Repeats the last patch if there are fewer than sixteen, because a loop with one step per
    // patch would mispredict its end at every tile.
    [[gnu::always_inline]] void load(const uint16_t* patches, int64_t count) {
      static constexpr uint16_t kOnes[32] = {0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff,
                                             0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff,
                                             0xffff, 0xffff, 0xffff, 0xffff};
      const H16 is_some = load_as<H16>(kOnes + 16 - (count < 16 ? count : 16));
      const H16 last = all<H16>(patches[count - (count > 0)]);
      const H16 kept = (load_as<H16>(patches) & is_some) | (last & ~is_some);
      store_as(place, Place::upper_bytes(kept));
      store_as(byte, (kept & 0x7f) + (kept & 0x40));  // the sign moves from bit 6 to 7
      asm("" : "+m"(place), "+m"(byte));  // otherwise GCC extracts them from registers one by one
    }
    [[gnu::always_inline]] void put(uint16_t* tile) const {
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        reinterpret_cast<uint8_t*>(tile)[place[i]] = static_cast<uint8_t>(byte[i]);
    }
  };

  Sixteen first_;
};

}  // namespace
}  // namespace specqd
