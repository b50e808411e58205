// Memory of one simulated device.
//
//   device range (PROT_NONE)   [ allocation | guard | allocation | guard | ... ]   what callers hold: a host touch faults at
//   once alias range (same pages)   [ fault | allocation | fault | allocation | fault | ... ]   what work dereferences
//
// Both are the same memfd, mapped twice, so an address is translated by adding a constant. Behind every allocation lies a page
// that belongs to nobody. Memory is filled with kFresh when it is allocated and with kFreed when it is freed; freed memory
// waits in a quarantine before its addresses are handed out again, so that a stale address is recognised as such.
//
// Invariant: an address is handed to work only when its whole range lies in one live allocation. Not thread-safe: the owner
// locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace accel::sim {

constexpr size_t kPage = 4096;
constexpr unsigned char kFresh = 0xCD, kFreed = 0xDD;

class Memory {
 public:
  // `limit` bytes may be live at once. Throws std::bad_alloc where the system gives no address range of a few times that.
  explicit Memory(size_t limit);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Null when the limit does not allow it.
  void* allocate(size_t bytes);
  // Empty, or why the address cannot be freed: freed already, inside an allocation, not of this device.
  std::string free(void* address);

  // Whether the address lies in the device range, live or not.
  bool contains(const void* address) const;
  // Empty, or why [address, address + bytes) may not be used.
  std::string check(const void* address, size_t bytes) const;
  // The address work uses for one of the device range, and the way back (null where it is not in the alias range).
  void* alias(const void* address) const;
  const void* device_address(const void* alias) const;
  // Bytes of the live allocation that begins at `address`; 0 where there is none.
  size_t size_of(const void* address) const;

  size_t limit() const { return limit_; }
  size_t used() const { return used_; }  // whole pages
  size_t peak() const { return peak_; }
  size_t live() const { return live_.size(); }

 private:
  struct Block {
    size_t bytes;  // asked for
    size_t pages;
  };
  size_t offset_of(const void* address) const;
  void give_back(size_t offset, size_t pages);
  bool find_gap(size_t pages, size_t* offset);

  size_t limit_, span_, used_ = 0, peak_ = 0, next_ = kPage, quarantined_ = 0;  // the first page is a guard too
  int file_ = -1;
  std::byte *device_ = nullptr, *alias_ = nullptr;
  std::map<size_t, Block> live_;        // by offset in the range
  std::map<size_t, Block> quarantine_;  // freed, not yet handed out again
  std::deque<size_t> order_;            // of the quarantine, oldest first
};

}  // namespace accel::sim
