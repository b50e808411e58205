#include "block_store.h"

#include <cstring>
#include <string>

#include "accel/error.h"
#include "slots.h"

namespace accel::core {

std::string block_name(const BlockStore& store, int32_t block) {
  return "block " + std::to_string(block) + " of generation " + std::to_string(store.at(block).generation);
}

BlockStore::BlockStore(int32_t blocks) : blocks_(static_cast<size_t>(blocks)), queue_(std::make_unique<LruPolicy>(blocks)) {
  size_t buckets = 16;
  while (buckets < 2 * blocks_.size()) buckets *= 2;
  buckets_.assign(buckets, kNone);
  for (int32_t b = blocks; b-- > 0;) put_free(b);  // so that the lowest is the first to be taken
  counts_.free = blocks;
}

int64_t BlockStore::id(int32_t block) const { return stamped(at(block).generation, block); }

int32_t BlockStore::find(int64_t id) const {
  const int64_t index = id & 0xffffffff;
  if (id < 0 || index >= blocks()) return kNone;
  const Block& block = at(static_cast<int32_t>(index));
  if (block.life == Life::kFree || block.generation != static_cast<uint32_t>(id >> 32)) return kNone;
  return static_cast<int32_t>(index);
}

size_t BlockStore::bucket(const Digest& digest) const {
  uint64_t word;  // a digest is as good as random
  std::memcpy(&word, digest.data(), sizeof(word));
  return static_cast<size_t>(word) & (buckets_.size() - 1);
}

int32_t BlockStore::find(const Digest& digest) const {
  int32_t b = buckets_[bucket(digest)];
  while (b != kNone && at(b).digest != digest) b = at(b).next;
  return b;
}

void BlockStore::tally(const Block& block, int64_t by) {
  switch (block.life) {
    case Life::kFree:
      counts_.free += by;
      break;
    case Life::kPending:
      counts_.pending += by;
      break;
    case Life::kCommitted:
      (block.leases > 0 ? counts_.committed : counts_.cached) += by;
      break;
  }
  if (block.leases > 0 && block.leases == block.step_leases) counts_.draining += by;
}

void BlockStore::put_free(int32_t block) {
  mut(block).life = Life::kFree;
  mut(block).next = free_head_;
  free_head_ = block;
}

int32_t BlockStore::allocate() {
  if (free_head_ == kNone) evict();
  const int32_t index = free_head_;
  Block& block = mut(index);
  free_head_ = block.next;
  tally(block, -1);
  block.generation = next_generation(block.generation);
  block.life = Life::kPending;
  block.leases = 1;
  block.step_leases = 0;
  block.parent = block.next = kNone;
  tally(block, 1);
  ++allocations_;
  return index;
}

// The block has just become active: it leaves the queue, and so do those ancestors that were idle until now.
void BlockStore::activate(int32_t block) {
  while (block != kNone) {
    queue_->remove(block);
    block = at(block).parent;
    if (block == kNone) return;
    Block& parent = mut(block);
    const bool was_active = parent.active();
    ++parent.active_children;
    if (was_active) return;
  }
}

// The block is no longer active: it enters the queue, and after it those ancestors that nothing else keeps.
void BlockStore::deactivate(int32_t block) {
  while (block != kNone) {
    queue_->push(block);
    block = at(block).parent;
    if (block == kNone) return;
    --mut(block).active_children;
    if (at(block).active()) return;
  }
}

void BlockStore::lease(int32_t index, Hold hold) {
  Block& block = mut(index);
  const bool was_active = block.active();
  tally(block, -1);
  ++block.leases;
  if (hold == Hold::kStep) ++block.step_leases;
  tally(block, 1);
  if (!was_active) activate(index);  // only an indexed block can have been without a lease
}

void BlockStore::release(int32_t index, Hold hold) {
  Block& block = mut(index);
  if (block.leases < 1 || (hold == Hold::kStep && block.step_leases < 1)) {
    throw Error(ErrorKind::kInternal, block_name(*this, index) + " has no lease to release");
  }
  tally(block, -1);
  --block.leases;
  if (hold == Hold::kStep) --block.step_leases;
  const bool last = block.leases == 0;
  if (last && block.life == Life::kPending) put_free(index);
  tally(block, 1);
  if (last && block.life == Life::kCommitted && !block.active()) deactivate(index);
}

void BlockStore::commit(int32_t index, const Digest& digest, int32_t parent) {
  Block& block = mut(index);
  tally(block, -1);
  block.life = Life::kCommitted;
  tally(block, 1);
  block.digest = digest;
  block.parent = parent;
  int32_t& head = buckets_[bucket(digest)];
  block.next = head;
  head = index;
  if (parent == kNone) return;
  Block& above = mut(parent);  // leased by whoever commits, so it is active already
  ++above.children;
  ++above.active_children;
}

void BlockStore::evict() {
  const int32_t index = queue_->victim();
  if (index == kNone) throw Error(ErrorKind::kInternal, "no block is free and none can be evicted");
  Block& block = mut(index);
  if (block.children != 0) {
    throw Error(ErrorKind::kInternal, block_name(*this, index) + " is to be evicted before its " +
                                          std::to_string(block.children) + " children in the index");
  }
  queue_->remove(index);
  int32_t* link = &buckets_[bucket(block.digest)];
  while (*link != index) link = &mut(*link).next;
  *link = block.next;
  if (block.parent != kNone) --mut(block.parent).children;
  block.parent = kNone;
  tally(block, -1);
  put_free(index);
  tally(block, 1);
  ++evictions_;
}

}  // namespace accel::core
