// The life of every block: free list, leases, prefix index and eviction queue over one array of blocks.
//
//                allocate                     commit                    last lease goes
//      FREE ─────────────────> PENDING ──────────────────> COMMITTED ───────────────────> CACHED
//       ^                         │     in the index from      ^                             │ │
//       │    last lease goes      │     here to its eviction   └──────── leased again ───────┘ │
//       ├─────────────────────────┘                                                            │
//       └───────────────────────────────────── evict ──────────────────────────────────────────┘
//
// PENDING   owned by one request, whose step is writing it          COMMITTED  the output of that step came back
// CACHED    COMMITTED without a lease (not a state of its own)      FREE       in the free list; its id is stale
//
// The index is a forest: the parent of a block is the block of the tokens before it. A block is *active* when it has a lease or
// an active child. The eviction queue holds exactly the indexed blocks that are not active:
//
//      A(lease) ── B ── C(lease)      B has no lease, but C is active: not evictable
//               └─ D ── E             queue: E, D. A child enters before its parent, so what goes first is always a leaf
//
// Invariants: free + pending + committed + cached == blocks; all of the queue can be evicted, in its order; every verb is O(1)
// a block, without allocation (a lease on a block whose ancestors are all idle walks up to the first that is active). check()
// verifies them. The caller locks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "eviction.h"
#include "sha256.h"

namespace accel::core {

enum class Life : uint8_t { kFree, kPending, kCommitted };
enum class Hold : uint8_t { kStep, kOther };  // STEP leases are counted apart: what only they hold comes back by itself

struct Block {
  Digest digest{};
  uint32_t generation = 0;
  int32_t leases = 0, step_leases = 0;
  int32_t parent = kNone, children = 0, active_children = 0;
  int32_t next = kNone;  // in the free list, or in the bucket of the index
  Life life = Life::kFree;

  bool active() const { return leases > 0 || active_children > 0; }
};

struct BlockCounts {
  int64_t free = 0, pending = 0, committed = 0, cached = 0, draining = 0;
  bool operator==(const BlockCounts& o) const {
    return free == o.free && pending == o.pending && committed == o.committed && cached == o.cached && draining == o.draining;
  }
};

class BlockStore {
 public:
  explicit BlockStore(int32_t blocks);

  int32_t blocks() const { return static_cast<int32_t>(blocks_.size()); }
  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  int64_t id(int32_t block) const;
  // The index of a block from its stamped id, or kNone where the id is stale or never was.
  int32_t find(int64_t id) const;
  int32_t find(const Digest& digest) const;

  const BlockCounts& counts() const { return counts_; }
  int64_t evictable() const { return queue_->size(); }
  int64_t available() const { return counts_.free + evictable(); }
  // Whether the block counts as available now.
  bool is_evictable(int32_t block) const { return at(block).life == Life::kCommitted && !at(block).active(); }
  int64_t allocations() const { return allocations_; }
  int64_t evictions() const { return evictions_; }

  // A PENDING block with one lease. Throws kInternal when available() is 0.
  int32_t allocate();
  void lease(int32_t block, Hold hold);
  // The last one frees a PENDING block and leaves a COMMITTED one in the cache.
  void release(int32_t block, Hold hold);
  // PENDING to COMMITTED, under a digest that the index does not have yet.
  void commit(int32_t block, const Digest& digest, int32_t parent);
  // Frees the next victim. Throws kInternal when there is none, or when it has children in the index.
  void evict();

  // Throws kInternal naming the first block with a broken invariant. `leases` and `step_leases` are what the holders know.
  void check(const std::vector<int32_t>& leases, const std::vector<int32_t>& step_leases) const;

 private:
  Block& mut(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  size_t bucket(const Digest& digest) const;
  void tally(const Block& block, int64_t by);
  void put_free(int32_t block);
  void activate(int32_t block);
  void deactivate(int32_t block);
  void check_free_list() const;
  void check_queue() const;
  void check_index() const;

  std::vector<Block> blocks_;
  std::vector<int32_t> buckets_;  // heads of chains through Block::next
  std::unique_ptr<EvictionPolicy> queue_;
  int32_t free_head_ = kNone;
  BlockCounts counts_;
  int64_t allocations_ = 0, evictions_ = 0;
};

// "block 5 (id 0x…)", for messages.
std::string block_name(const BlockStore& store, int32_t block);

}  // namespace accel::core
