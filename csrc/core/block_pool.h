// What requests, steps and transfers do with blocks: tables, step leases, transfer leases. Every verb is one call under one
// lock.
//
//      request ── table ──┐ REQUEST leases: open, grow … close_table
//      plan in flight ────┤ STEP leases:    begin_step … commit_step | drop_step      (outlive a table that was closed)
//      transfer ──────────┤ SWAP, STORE on COMMITTED blocks, LOAD on PENDING ones: lease … release
//                         v
//                    BlockStore: one count a block; at 0 it goes to the cache or the free list
//
// A table is the blocks of a request in order:   [ COMMITTED … COMMITTED | PENDING … PENDING ]
//                                                  `committed` leading ones  being written
// and each COMMITTED entry is the very block that the index has for those tokens.
//
// Invariant: a call that throws has changed nothing (kInternal excepted: the pool is broken then). Ids of blocks, tables, steps
// and leases are stamped; a stale one is refused in every build.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "block_digest.h"
#include "block_store.h"
#include "slots.h"

namespace accel::core {

enum class LeaseKind { kSwap, kLoad, kStore };

struct PoolStats {
  int64_t blocks, free, pending, committed, cached, evictable, draining, owned, tables, steps, leases;
  int64_t allocations, evictions, commits, duplicates, hit_tokens, queried_tokens, abandoned_leases;
};

class BlockPool {
 public:
  static constexpr int64_t kMostBlocks = int64_t{1} << 28, kMostBlockSize = int64_t{1} << 16;

  BlockPool(int64_t blocks, int64_t block_size);
  int64_t blocks() const { return store_.blocks(); }
  int64_t block_size() const { return block_size_; }

  // Leading full blocks of `tokens` that the index has under `root`, at most `limit`. Changes nothing.
  int64_t match(const Digest& root, const int32_t* tokens, int64_t count, int64_t limit) const;

  struct Opened {
    int64_t table, hit_tokens;
  };
  // Nothing where fewer than `keep_free` blocks would stay available.
  std::optional<Opened> open(const Digest& root, const int32_t* tokens, int64_t count, int64_t limit, int64_t keep_free);
  // How many leading rows were satisfied.
  int64_t grow(const int64_t* tables, const int32_t* ends, int64_t rows);
  void close_table(int64_t table);
  std::vector<int64_t> table_blocks(int64_t table) const;
  std::vector<int32_t> table_tokens(int64_t table) const;

  // `out` is [rows, columns]; the id of the step.
  int64_t begin_step(const int64_t* tables, const int32_t* ends, int64_t rows, int32_t* out, int64_t columns);
  // `alive` holds bytes of which 0 means false; the number of blocks that became COMMITTED.
  int64_t commit_step(int64_t step, const uint8_t* alive, const int32_t* computed, const int32_t* tokens, int64_t rows);
  void drop_step(int64_t step);

  int64_t lease(const int64_t* ids, int64_t count, LeaseKind kind);
  void release(int64_t lease);
  // The holder is gone without a release: the blocks stay, for something may still be touching them.
  void abandon(int64_t lease);

  int64_t drop_cached();
  PoolStats stats() const;
  // Verifies every invariant, O(blocks + entries); throws kInternal naming the block and what is wrong.
  void check() const;

 private:
  struct Table {
    Digest root{};
    std::vector<int32_t> tokens;  // may know fewer than the blocks hold (a step ahead) or more (not grown yet)
    std::vector<int32_t> blocks;
    int64_t committed = 0;
    int64_t mark = 0;  // the last step that named it, to find a table that is named twice
  };
  struct Row {
    int64_t table;
    int64_t end;
    size_t first, last;  // its blocks in Step::blocks
  };
  struct Step {
    std::vector<Row> rows;
    std::vector<int32_t> blocks;  // as they were when the step began: a table's entry may be exchanged meanwhile
  };
  struct Transfer {
    std::vector<int32_t> blocks;
  };

  int64_t blocks_for(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  int64_t walk(const Digest& root, const int32_t* tokens, int64_t count, int64_t limit, std::vector<int32_t>* found) const;
  Table& table_of(int64_t table, const char* op);
  Step& step_of(int64_t step, const char* op);
  void check_commit(const Step& step, const uint8_t* alive, const int32_t* computed, const int32_t* tokens, int64_t rows);
  int64_t commit_table(Table& table, int64_t computed);
  void release_row(const Step& step, const Row& row);
  void check_table(const Table& table) const;

  mutable std::mutex mutex_;
  const int64_t block_size_;
  BlockStore store_;
  mutable BlockHasher hasher_;
  Slots<Table> tables_;
  Slots<Step> steps_;
  Slots<Transfer> transfers_;
  std::vector<int32_t> hits_;  // scratch of open
  int64_t marks_ = 0;
  int64_t commits_ = 0, duplicates_ = 0, hit_tokens_ = 0, queried_tokens_ = 0, abandoned_ = 0;
};

}  // namespace accel::core
