#include "checker.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "memory.h"

namespace accel::sim {

std::string Race::text() const {
  char where[64];
  std::snprintf(where, sizeof(where), "%zu bytes at 0x%zx", static_cast<size_t>(end - begin), static_cast<size_t>(begin));
  return first + " and " + second + " touch " + where + ", one of them writes, and nothing orders them";
}

void Checker::note(const Range& range, size_t actor, const Clock& clock, const SitePtr& site) {
  for (uintptr_t at = range.begin; at < range.end;) {
    const uintptr_t page = at / kPage, end = std::min(range.end, (page + 1) * kPage);
    note_in_page(pages_[page], {{at, end, range.mode}, actor, clock.at(actor), site}, clock);
    at = end;
  }
}

void Checker::note_in_page(std::vector<Entry>& page, const Entry& entry, const Clock& clock) {
  const auto replaced = [&](const Entry& old) {
    const bool ordered = clock.at(old.actor) >= old.count;
    const bool covers = entry.range.begin <= old.range.begin && old.range.end <= entry.range.end;
    const bool overlap = entry.range.begin < old.range.end && old.range.begin < entry.range.end;
    const bool write = ((entry.range.mode | old.range.mode) & ACCEL_WRITE) != 0;
    if (!ordered && overlap && write) {
      ++found_;
      const Race race{old.site->text(), entry.site->text(), std::max(old.range.begin, entry.range.begin),
                      std::min(old.range.end, entry.range.end)};
      if (races_.size() < kMostRaces && told_.emplace(race.first, race.second).second) races_.push_back(race);
    }
    // Whoever comes after the new one comes after the old one too, and would meet the new one first.
    return ordered && covers && ((entry.range.mode & ACCEL_WRITE) != 0 || old.range.mode == ACCEL_READ);
  };
  page.erase(std::remove_if(page.begin(), page.end(), replaced), page.end());
  if (page.size() >= kMostAccesses) page.erase(page.begin());
  page.push_back(entry);
}

void Checker::forget(uintptr_t begin, size_t bytes) {
  if (bytes / kPage > pages_.size()) {
    for (auto it = pages_.begin(); it != pages_.end();) {
      it = it->first >= begin / kPage && it->first <= (begin + bytes) / kPage ? pages_.erase(it) : std::next(it);
    }
    return;
  }
  for (uintptr_t page = begin / kPage; page * kPage < begin + bytes; ++page) pages_.erase(page);
}

std::vector<Race> Checker::take() {
  told_.clear();
  return std::exchange(races_, {});
}

}  // namespace accel::sim
