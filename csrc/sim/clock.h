// Vector clocks: what an actor (the host, a stream) knows to have happened.
//
// Invariant: `a` happened before `b` exactly when b's clock has at least a's own count at the time of a.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace accel::sim {

class Clock {
 public:
  uint64_t at(size_t actor) const { return actor < counts_.size() ? counts_[actor] : 0; }
  uint64_t tick(size_t actor) {
    if (actor >= counts_.size()) counts_.resize(actor + 1);
    return ++counts_[actor];
  }
  void join(const Clock& other) {
    if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
    for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }

 private:
  std::vector<uint64_t> counts_;
};

}  // namespace accel::sim
