#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace accel::sim {
namespace {

// Address space in multiples of the limit: guards take as much as the smallest allocations, and the rest keeps addresses fresh.
constexpr size_t kSpans = 4;
// Freed bytes that stay in quarantine, as a part of the limit.
constexpr size_t kQuarantineParts = 4;

size_t pages_of(size_t bytes) { return std::max<size_t>(1, bytes / kPage + (bytes % kPage ? 1 : 0)); }

// The entry of `blocks` whose pages contain the offset.
template <typename Blocks>
auto containing(const Blocks& blocks, size_t offset) {
  auto it = blocks.upper_bound(offset);
  if (it == blocks.begin()) return blocks.end();
  --it;
  return offset < it->first + it->second.pages * kPage ? it : blocks.end();
}

}  // namespace

Memory::Memory(size_t limit) : limit_(limit), span_((limit / kPage + 1) * kPage * kSpans) {
  file_ = memfd_create("accel-sim", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(span_)) != 0) {
    if (file_ >= 0) close(file_);
    throw std::bad_alloc();
  }
  void* const device = mmap(nullptr, span_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  void* const alias = mmap(nullptr, span_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (device == MAP_FAILED || alias == MAP_FAILED) {
    if (device != MAP_FAILED) munmap(device, span_);
    if (alias != MAP_FAILED) munmap(alias, span_);
    close(file_);
    throw std::bad_alloc();
  }
  device_ = static_cast<std::byte*>(device);
  alias_ = static_cast<std::byte*>(alias);
}

Memory::~Memory() {
  munmap(device_, span_);
  munmap(alias_, span_);
  close(file_);
}

size_t Memory::offset_of(const void* address) const {
  return static_cast<size_t>(static_cast<const std::byte*>(address) - device_);
}

bool Memory::contains(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= device_ && at < device_ + span_;
}

void* Memory::alias(const void* address) const { return alias_ + offset_of(address); }

const void* Memory::device_address(const void* alias) const {
  const auto* const at = static_cast<const std::byte*>(alias);
  return at >= alias_ && at < alias_ + span_ ? device_ + (at - alias_) : nullptr;
}

size_t Memory::size_of(const void* address) const {
  const auto it = contains(address) ? live_.find(offset_of(address)) : live_.end();
  return it == live_.end() ? 0 : it->second.bytes;
}

// The next gap behind the last allocation, with a page to spare on either side; the search wraps once.
bool Memory::find_gap(size_t pages, size_t* offset) {
  const size_t wanted = (pages + 1) * kPage;
  for (size_t at : {next_, kPage}) {
    for (;;) {
      if (wanted > span_ || at > span_ - wanted) break;
      // Where the last block ends, its guard included, that reaches into [at, at + wanted); 0 for none.
      const auto blocker = [&](const std::map<size_t, Block>& blocks) {
        auto it = blocks.lower_bound(at + wanted);
        if (it == blocks.begin()) return size_t{0};
        --it;
        const size_t end = it->first + (it->second.pages + 1) * kPage;
        return end > at ? end : 0;
      };
      const size_t end = std::max(blocker(live_), blocker(quarantine_));
      if (end == 0) {
        *offset = at;
        next_ = at + wanted;
        return true;
      }
      at = end;
    }
  }
  return false;
}

void* Memory::allocate(size_t bytes) {
  if (bytes > limit_) return nullptr;
  const size_t pages = pages_of(bytes), size = pages * kPage;
  if (size > limit_ || used_ > limit_ - size) return nullptr;
  size_t offset = 0;
  while (!find_gap(pages, &offset)) {
    if (order_.empty()) return nullptr;
    const size_t oldest = order_.front();
    order_.pop_front();
    give_back(oldest, quarantine_[oldest].pages);
  }
  if (mprotect(alias_ + offset, size, PROT_READ | PROT_WRITE) != 0) return nullptr;
  std::memset(alias_ + offset, kFresh, size);
  live_[offset] = {bytes, pages};
  used_ += size;
  peak_ = std::max(peak_, used_);
  return device_ + offset;
}

void Memory::give_back(size_t offset, size_t pages) {
  const size_t size = pages * kPage;
  quarantine_.erase(offset);
  quarantined_ -= size;
  mprotect(alias_ + offset, size, PROT_NONE);
  (void)fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(size));
}

std::string Memory::free(void* address) {
  if (!contains(address)) return "freed memory that is not an allocation of this device";
  const size_t offset = offset_of(address);
  const auto it = live_.find(offset);
  if (it == live_.end()) {
    if (containing(live_, offset) != live_.end()) return "freed an address inside an allocation, not its beginning";
    return "freed memory that is not an allocation of this device, or freed it twice";
  }
  const Block block = it->second;
  const size_t size = block.pages * kPage;
  std::memset(alias_ + offset, kFreed, size);  // work that still runs reads this, and does not end the process
  live_.erase(it);
  used_ -= size;
  quarantine_[offset] = block;
  quarantined_ += size;
  order_.push_back(offset);
  while (quarantined_ > limit_ / kQuarantineParts && order_.size() > 1) {
    const size_t oldest = order_.front();
    order_.pop_front();
    give_back(oldest, quarantine_[oldest].pages);
  }
  return {};
}

std::string Memory::check(const void* address, size_t bytes) const {
  const size_t offset = offset_of(address);
  const auto it = containing(live_, offset);
  if (it == live_.end()) {
    return containing(quarantine_, offset) != quarantine_.end() ? "uses device memory that was freed"
                                                                : "uses an address that is in no allocation of the device";
  }
  const size_t inside = offset - it->first;
  if (inside > it->second.bytes || bytes > it->second.bytes - inside) {
    return "uses " + std::to_string(bytes) + " bytes at " + std::to_string(inside) + " of an allocation of " +
           std::to_string(it->second.bytes);
  }
  return {};
}

}  // namespace accel::sim
