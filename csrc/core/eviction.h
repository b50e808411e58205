// Which cached block goes next.
//
// Invariant of the caller (BlockStore): a block enters after all its children in the index have entered or gone, so a policy
// that takes blocks in the order in which they entered never takes a block before what depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accel::core {

inline constexpr int32_t kNone = -1;

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // `block` became evictable; it is not in the queue.
  virtual void push(int32_t block) = 0;
  // `block` is in use again or gone; it is in the queue.
  virtual void remove(int32_t block) = 0;
  // The next to go, or kNone. It stays until it is removed.
  virtual int32_t victim() const = 0;
  virtual int32_t size() const = 0;
  // All that are in the queue, the next to go first. For checks; no more than `most`, so that a broken queue ends.
  virtual std::vector<int32_t> order(int32_t most) const = 0;
};

// The one that was used least recently goes first.
class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(int32_t blocks) : links_(static_cast<size_t>(blocks)) {}
  void push(int32_t block) override;
  void remove(int32_t block) override;
  int32_t victim() const override;
  int32_t size() const override { return size_; }
  std::vector<int32_t> order(int32_t most) const override;

 private:
  struct Link {
    int32_t older = kNone, newer = kNone;
  };
  Link& at(int32_t block) { return links_[static_cast<size_t>(block)]; }
  std::vector<Link> links_;
  int32_t oldest_ = kNone, newest_ = kNone, size_ = 0;
};

}  // namespace accel::core
