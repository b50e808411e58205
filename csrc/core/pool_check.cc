// check(): every invariant of the pool, recomputed from scratch. For tests, for a doubt in the field; never on a step's path.

#include <algorithm>

#include "accel/error.h"
#include "block_pool.h"

namespace accel::core {
namespace {

[[noreturn]] void broken(const std::string& message) { throw Error(ErrorKind::kInternal, message, "BlockPool.check"); }

void require_equal(const std::string& what, int64_t found, int64_t wanted) {
  if (found != wanted) broken(what + " is " + std::to_string(found) + "; it should be " + std::to_string(wanted));
}

}  // namespace

void BlockStore::check_free_list() const {
  int64_t length = 0;
  for (int32_t b = free_head_; b != kNone; b = at(b).next) {
    if (++length > blocks()) broken("the free list runs in a circle");
    if (at(b).life != Life::kFree) broken(block_name(*this, b) + " is in the free list and has another life");
  }
  const auto free = std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.life == Life::kFree; });
  require_equal("the length of the free list", length, free);
}

void BlockStore::check_queue() const {
  const std::vector<int32_t> order = queue_->order(blocks() + 1);
  require_equal("the length of the eviction queue", static_cast<int64_t>(order.size()), queue_->size());
  std::vector<int32_t> place(blocks_.size(), kNone);
  for (size_t i = 0; i < order.size(); ++i) {
    int32_t& mine = place[static_cast<size_t>(order[i])];
    if (mine != kNone) broken(block_name(*this, order[i]) + " is in the eviction queue twice");
    mine = static_cast<int32_t>(i);
    const int32_t parent = at(order[i]).parent;
    if (parent != kNone && place[static_cast<size_t>(parent)] != kNone) {
      broken(block_name(*this, order[i]) + " is to be evicted after its parent, " + block_name(*this, parent));
    }
  }
  for (int32_t b = 0; b < blocks(); ++b) {
    const bool queued = place[static_cast<size_t>(b)] != kNone;
    if (queued != is_evictable(b)) {
      broken(block_name(*this, b) +
             (queued ? " is in the eviction queue and in use" : " can be evicted and is not in the queue"));
    }
  }
}

void BlockStore::check_index() const {
  std::vector<int32_t> children(blocks_.size()), active(blocks_.size());
  for (int32_t b = 0; b < blocks(); ++b) {
    const Block& block = at(b);
    if (block.life != Life::kCommitted) continue;
    if (find(block.digest) != b) broken(block_name(*this, b) + " is committed and the index does not find it");
    if (block.parent == kNone) continue;
    if (at(block.parent).life != Life::kCommitted) {
      broken(block_name(*this, b) + " is in the index and its parent, " + block_name(*this, block.parent) + ", is not");
    }
    ++children[static_cast<size_t>(block.parent)];
    if (block.active()) ++active[static_cast<size_t>(block.parent)];
  }
  for (int32_t b = 0; b < blocks(); ++b) {
    const std::string name = block_name(*this, b);
    require_equal("the number of children of " + name, at(b).children, children[static_cast<size_t>(b)]);
    require_equal("the number of active children of " + name, at(b).active_children, active[static_cast<size_t>(b)]);
  }
  int64_t indexed = 0;
  for (const int32_t head : buckets_) {
    for (int32_t b = head; b != kNone; b = at(b).next) {
      if (++indexed > blocks()) broken("the index runs in a circle");
      if (at(b).life != Life::kCommitted) broken(block_name(*this, b) + " is in the index and not committed");
    }
  }
  require_equal("the number of blocks in the index", indexed, counts_.committed + counts_.cached);
}

void BlockStore::check(const std::vector<int32_t>& leases, const std::vector<int32_t>& step_leases) const {
  BlockCounts counts;
  for (int32_t b = 0; b < blocks(); ++b) {
    const Block& block = at(b);
    const std::string name = block_name(*this, b);
    require_equal("the number of leases on " + name, block.leases, leases[static_cast<size_t>(b)]);
    require_equal("the number of step leases on " + name, block.step_leases, step_leases[static_cast<size_t>(b)]);
    if (block.life == Life::kFree && block.leases != 0) broken(name + " is free and leased");
    if (block.life == Life::kPending && block.leases == 0) broken(name + " is being written and nobody owns it");
    if (block.leases > 0 && block.leases == block.step_leases) ++counts.draining;
    switch (block.life) {
      case Life::kFree:
        ++counts.free;
        break;
      case Life::kPending:
        ++counts.pending;
        break;
      case Life::kCommitted:
        ++(block.leases > 0 ? counts.committed : counts.cached);
        break;
    }
  }
  if (!(counts == counts_)) broken("the counts of free, pending, committed, cached or draining blocks are wrong");
  check_free_list();
  check_index();
  check_queue();
}

void BlockPool::check_table(const Table& table) const {
  Digest digest = table.root;
  int32_t parent = kNone;
  for (int64_t i = 0; i < static_cast<int64_t>(table.blocks.size()); ++i) {
    const int32_t b = table.blocks[static_cast<size_t>(i)];
    const Block& block = store_.at(b);
    const std::string name = block_name(store_, b) + ", entry " + std::to_string(i) + " of a table,";
    if (i >= table.committed) {
      if (block.life != Life::kPending) broken(name + " should be in the course of being written");
      continue;
    }
    digest = hasher_.next(digest, table.tokens.data() + i * block_size_);
    if (block.life != Life::kCommitted) broken(name + " should be committed");
    if (block.parent != parent) broken(name + " has another parent in the index than in the table");
    if (block.digest != digest) broken(name + " has the digest of other tokens");
    parent = b;
  }
}

void BlockPool::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto size = static_cast<size_t>(store_.blocks());
  std::vector<int32_t> leases(size), step_leases(size), owners(size);
  tables_.for_each([&](const Table& table) {
    for (const int32_t b : table.blocks) ++leases[static_cast<size_t>(b)], ++owners[static_cast<size_t>(b)];
  });
  steps_.for_each([&](const Step& step) {
    for (const int32_t b : step.blocks) ++leases[static_cast<size_t>(b)], ++step_leases[static_cast<size_t>(b)];
  });
  transfers_.for_each([&](const Transfer& transfer) {
    for (const int32_t b : transfer.blocks) ++leases[static_cast<size_t>(b)];
  });
  store_.check(leases, step_leases);
  for (int32_t b = 0; b < store_.blocks(); ++b) {
    if (store_.at(b).life == Life::kPending && owners[static_cast<size_t>(b)] > 1) {
      broken(block_name(store_, b) + " is being written and lies in more than one table");
    }
  }
  tables_.for_each([this](const Table& table) { check_table(table); });
}

}  // namespace accel::core
