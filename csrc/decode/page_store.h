// The interface of a store that keeps the published pages of a KV cache elsewhere, such as in
// files. This file knows tokens and slots, but no files.
#pragma once

#include <cstdint>
#include <span>

namespace specqd {

class PageStore {
 public:
  virtual ~PageStore() = default;
  // Puts the kept pages of these tokens into the cache, as published pages. `key` names the
  // sequence that will begin with them.
  virtual void restore(int64_t key, std::span<const int32_t> tokens, uint64_t salt) = 0;
  // Keeps the published pages of a slot that holds these tokens.
  virtual void keep(int slot, std::span<const int32_t> tokens, uint64_t salt) = 0;
};

}  // namespace specqd
