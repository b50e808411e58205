// Planned failures and counters of one simulated device.
//
// Invariant: a counter counts calls of its point since the device was opened, whether or not they failed. Not thread-safe:
// the owner locks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace accel::sim {

enum class Point { kMalloc, kCopy, kLaunch, kEvent, kSync };
constexpr const char* kPointNames[] = {"malloc", "copy", "launch", "event", "sync"};
constexpr size_t kPoints = 5;

class Faults {
 public:
  // Fail call `nth` of the point, counted from now (1 is the next); with `sticky` every later one too.
  void arm(Point point, uint64_t nth, bool sticky) { armed_.push_back({point, count(point) + nth, sticky}); }
  void disarm() { armed_.clear(); }
  uint64_t count(Point point) const { return counts_[static_cast<size_t>(point)]; }

  // Counts a call; empty, or why it fails.
  std::string pass(Point point) {
    const uint64_t number = ++counts_[static_cast<size_t>(point)];
    for (size_t i = 0; i < armed_.size(); ++i) {
      const Armed& armed = armed_[i];
      if (armed.point != point || number < armed.number || (number > armed.number && !armed.sticky)) continue;
      if (!armed.sticky) armed_.erase(armed_.begin() + static_cast<std::ptrdiff_t>(i));
      return "planned fault at " + std::string(kPointNames[static_cast<size_t>(point)]) + " " + std::to_string(number);
    }
    return {};
  }

 private:
  struct Armed {
    Point point;
    uint64_t number;
    bool sticky;
  };
  std::array<uint64_t, kPoints> counts_{};
  std::vector<Armed> armed_;
};

}  // namespace accel::sim
