// Happens-before over declared accesses.
//
//   pages -> accesses that are not yet followed by one that covers them: [begin, end), read or write, actor, its count, site
//
// A new access conflicts with an earlier one when their bytes overlap, one of them writes, and the clock of the new one does
// not have the earlier one's count: nothing orders them, whatever order they happened to run in.
//
// Limits: it sees declared accesses only; the host is one actor, so threads of it count as ordered; it keeps the newest
// kMostAccesses of a page. Not thread-safe: the owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "accel/runtime.h"
#include "clock.h"

namespace accel::sim {

struct Range {
  uintptr_t begin = 0, end = 0;
  AccelAccessMode mode = ACCEL_READ;
};

inline Range range_of(const void* begin, size_t bytes, AccelAccessMode mode) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  return {at, at + bytes, mode};
}

// Who accessed: "copy on stream 2 (swap.py:88)".
struct Site {
  std::string op, actor, where;
  std::string text() const { return op + " on " + actor + (where.empty() ? "" : " (" + where + ")"); }
};
using SitePtr = std::shared_ptr<const Site>;

struct Race {
  std::string first, second;  // texts of the sites, in the order they ran
  uintptr_t begin, end;       // bytes both touch
  std::string text() const;
};

class Checker {
 public:
  static constexpr size_t kMostAccesses = 128;
  static constexpr size_t kMostRaces = 1000;

  void note(const Range& range, size_t actor, const Clock& clock, const SitePtr& site);
  // The bytes got a new life: nobody counts on what was before.
  void forget(uintptr_t begin, size_t bytes);
  // The races found since the last call; a pair of sites is told once.
  std::vector<Race> take();
  size_t found() const { return found_; }

 private:
  struct Entry {
    Range range;
    size_t actor;
    uint64_t count;
    SitePtr site;
  };
  void note_in_page(std::vector<Entry>& page, const Entry& entry, const Clock& clock);

  std::unordered_map<uintptr_t, std::vector<Entry>> pages_;
  std::vector<Race> races_;
  std::set<std::pair<std::string, std::string>> told_;
  size_t found_ = 0;
};

}  // namespace accel::sim
