// Numbered things whose numbers are stamped: id = generation << 32 | slot. A slot is used again, an id never is.
//
// Invariant: find() gives null for any id that remove() took, however often its slot was used since (until 2^31 times).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace accel::core {

inline int64_t stamped(uint32_t generation, int32_t index) { return static_cast<int64_t>(generation) << 32 | index; }
inline int32_t index_of(int64_t id) { return static_cast<int32_t>(id & 0x7fffffff); }
// Ids stay positive: 31 bits, and never 0, so that no id is a bare index.
inline uint32_t next_generation(uint32_t generation) { return generation == 0x7fffffff ? 1 : generation + 1; }

template <typename T>
class Slots {
 public:
  // A new id. Its item is what the last user of the slot left, so that vectors keep their capacity. May throw std::bad_alloc,
  // and changes nothing then.
  int64_t add() {
    if (free_.empty()) {
      if (free_.capacity() <= entries_.size()) free_.reserve(2 * entries_.size() + 8);  // so that remove() needs no memory
      entries_.emplace_back();
      free_.push_back(static_cast<int32_t>(entries_.size() - 1));
    }
    const int32_t slot = free_.back();
    free_.pop_back();
    Entry& entry = entries_[static_cast<size_t>(slot)];
    entry.generation = next_generation(entry.generation);
    entry.live = true;
    ++live_;
    return stamped(entry.generation, slot);
  }
  T* find(int64_t id) {
    const auto slot = static_cast<size_t>(id & 0xffffffff);
    if (id < 0 || slot >= entries_.size()) return nullptr;
    Entry& entry = entries_[slot];
    return entry.live && entry.generation == static_cast<uint32_t>(id >> 32) ? &entry.item : nullptr;
  }
  void remove(int64_t id) {
    entries_[static_cast<size_t>(index_of(id))].live = false;
    free_.push_back(index_of(id));
    --live_;
  }
  int64_t live() const { return live_; }
  template <typename F>
  void for_each(F&& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.live) visit(entry.item);
    }
  }

 private:
  struct Entry {
    T item{};
    uint32_t generation = 0;
    bool live = false;
  };
  std::deque<Entry> entries_;  // addresses stay
  std::vector<int32_t> free_;
  int64_t live_ = 0;
};

}  // namespace accel::core
