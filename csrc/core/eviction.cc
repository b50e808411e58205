#include "eviction.h"

namespace accel::core {

void LruPolicy::push(int32_t block) {
  at(block) = {newest_, kNone};
  (newest_ == kNone ? oldest_ : at(newest_).newer) = block;
  newest_ = block;
  ++size_;
}

void LruPolicy::remove(int32_t block) {
  const Link link = at(block);
  (link.older == kNone ? oldest_ : at(link.older).newer) = link.newer;
  (link.newer == kNone ? newest_ : at(link.newer).older) = link.older;
  at(block) = {};
  --size_;
}

int32_t LruPolicy::victim() const { return oldest_; }

std::vector<int32_t> LruPolicy::order(int32_t most) const {
  std::vector<int32_t> found;
  for (int32_t b = oldest_; b != kNone && static_cast<int32_t>(found.size()) < most; b = links_[static_cast<size_t>(b)].newer) {
    found.push_back(b);
  }
  return found;
}

}  // namespace accel::core
