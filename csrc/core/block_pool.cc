#include "block_pool.h"

#include <algorithm>

#include "accel/error.h"

namespace accel::core {
namespace {

[[noreturn]] void refuse(const char* op, const std::string& message, const std::string& hint = "") {
  throw Error(ErrorKind::kInvalidArgument, message, op, hint);
}

int64_t in_range(int64_t value, const char* what, int64_t most) {
  if (value < 1 || value > most) {
    refuse("BlockPool", std::string(what) + " is " + std::to_string(value) + "; it must be 1 to " + std::to_string(most));
  }
  return value;
}

void not_negative(const char* op, const char* what, int64_t value) {
  if (value < 0) refuse(op, std::string(what) + " is " + std::to_string(value) + "; it must be 0 or more");
}

std::string at(const char* what, int64_t row) { return std::string(what) + "[" + std::to_string(row) + "]"; }

void check_tokens(const char* op, const int32_t* tokens, int64_t count) {
  int32_t signs = 0;
  for (int64_t i = 0; i < count; ++i) signs |= tokens[i];  // a loop that the compiler vectorises
  if (signs >= 0) return;
  const int32_t* const bad = std::find_if(tokens, tokens + count, [](int32_t token) { return token < 0; });
  not_negative(op, at("tokens", bad - tokens).c_str(), *bad);
}

// Room for `more` without giving up amortised growth.
template <typename T>
void make_room(std::vector<T>& list, size_t more) {
  if (list.capacity() - list.size() < more) list.reserve(std::max(list.size() + more, 2 * list.size()));
}

}  // namespace

BlockPool::BlockPool(int64_t blocks, int64_t block_size)
    : block_size_(in_range(block_size, "block_size", kMostBlockSize)),
      store_(static_cast<int32_t>(in_range(blocks, "blocks", kMostBlocks))),
      hasher_(static_cast<int32_t>(block_size)) {}

BlockPool::Table& BlockPool::table_of(int64_t table, const char* op) {
  Table* const found = tables_.find(table);
  if (!found) refuse(op, "table " + std::to_string(table) + " is closed or was never opened");
  return *found;
}

BlockPool::Step& BlockPool::step_of(int64_t step, const char* op) {
  Step* const found = steps_.find(step);
  if (!found) refuse(op, "step " + std::to_string(step) + " has ended or was never begun");
  return *found;
}

int64_t BlockPool::walk(const Digest& root, const int32_t* tokens, int64_t count, int64_t limit,
                        std::vector<int32_t>* found) const {
  const int64_t most = std::min(limit, count / block_size_);
  Digest digest = root;
  for (int64_t hits = 0; hits < most; ++hits) {
    digest = hasher_.next(digest, tokens + hits * block_size_);
    const int32_t block = store_.find(digest);
    if (block == kNone) return hits;
    if (found) found->push_back(block);
  }
  return most;
}

int64_t BlockPool::match(const Digest& root, const int32_t* tokens, int64_t count, int64_t limit) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  not_negative("match", "limit", limit);
  check_tokens("match", tokens, count);
  return walk(root, tokens, count, limit, nullptr);
}

std::optional<BlockPool::Opened> BlockPool::open(const Digest& root, const int32_t* tokens, int64_t count, int64_t limit,
                                                 int64_t keep_free) {
  const std::lock_guard<std::mutex> lock(mutex_);
  not_negative("open", "limit", limit);
  not_negative("open", "keep_free", keep_free);
  check_tokens("open", tokens, count);
  const int64_t total = blocks_for(count);
  if (total > blocks()) return std::nullopt;
  hits_.clear();
  const int64_t hits = walk(root, tokens, count, limit, &hits_);
  // A hit that nobody uses is available now and will not be afterwards.
  const int64_t taken = std::count_if(hits_.begin(), hits_.end(), [this](int32_t b) { return store_.is_evictable(b); });
  if (store_.available() - taken - (total - hits) < keep_free) return std::nullopt;

  const int64_t id = tables_.add();
  Table& table = *tables_.find(id);
  try {
    table.tokens.assign(tokens, tokens + count);
    table.blocks.clear();
    table.blocks.reserve(static_cast<size_t>(total));
  } catch (...) {
    tables_.remove(id);
    throw;
  }
  table.root = root;
  table.committed = hits;
  table.mark = 0;
  for (const int32_t block : hits_) {
    store_.lease(block, Hold::kOther);
    table.blocks.push_back(block);
  }
  for (int64_t i = hits; i < total; ++i) table.blocks.push_back(store_.allocate());
  hit_tokens_ += hits * block_size_;
  queried_tokens_ += count;
  return Opened{id, hits * block_size_};
}

int64_t BlockPool::grow(const int64_t* tables, const int32_t* ends, int64_t rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int64_t r = 0; r < rows; ++r) {
    table_of(tables[r], "grow");
    not_negative("grow", at("ends", r).c_str(), ends[r]);
  }
  for (int64_t r = 0; r < rows; ++r) {
    Table& table = table_of(tables[r], "grow");
    const int64_t missing = blocks_for(ends[r]) - static_cast<int64_t>(table.blocks.size());
    if (missing <= 0) continue;
    if (missing > store_.available()) return r;
    make_room(table.blocks, static_cast<size_t>(missing));
    for (int64_t i = 0; i < missing; ++i) table.blocks.push_back(store_.allocate());
  }
  return rows;
}

void BlockPool::close_table(int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Table& table = table_of(id, "close_table");
  // From the end, so that a block enters the cache after what depends on it.
  for (size_t i = table.blocks.size(); i-- > 0;) store_.release(table.blocks[i], Hold::kOther);
  table.blocks.clear();
  tables_.remove(id);
}

std::vector<int64_t> BlockPool::table_blocks(int64_t id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Table& table = const_cast<BlockPool*>(this)->table_of(id, "table_blocks");
  std::vector<int64_t> ids;
  ids.reserve(table.blocks.size());
  for (const int32_t block : table.blocks) ids.push_back(store_.id(block));
  return ids;
}

std::vector<int32_t> BlockPool::table_tokens(int64_t id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return const_cast<BlockPool*>(this)->table_of(id, "table_tokens").tokens;
}

int64_t BlockPool::begin_step(const int64_t* tables, const int32_t* ends, int64_t rows, int32_t* out, int64_t columns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t mark = ++marks_;
  size_t total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    Table& table = table_of(tables[r], "begin_step");
    if (table.mark == mark) refuse("begin_step", at("tables", r) + " names a table a second time; it has one row in a step");
    table.mark = mark;
    not_negative("begin_step", at("ends", r).c_str(), ends[r]);
    const int64_t covered = static_cast<int64_t>(table.blocks.size()) * block_size_, needed = blocks_for(ends[r]);
    if (ends[r] > covered) {
      refuse("begin_step",
             at("ends", r) + " is " + std::to_string(ends[r]) + "; the table covers " + std::to_string(covered) + " tokens",
             "grow it first");
    }
    if (needed > columns) {
      refuse("begin_step", at("ends", r) + " is " + std::to_string(ends[r]) + ", which is " + std::to_string(needed) +
                               " blocks; out has " + std::to_string(columns) + " columns");
    }
    total += static_cast<size_t>(needed);
  }
  const int64_t id = steps_.add();
  Step& step = *steps_.find(id);
  try {
    step.rows.clear();
    step.rows.reserve(static_cast<size_t>(rows));
    step.blocks.clear();
    step.blocks.reserve(total);
  } catch (...) {
    steps_.remove(id);
    throw;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const Table& table = *tables_.find(tables[r]);
    const int64_t needed = blocks_for(ends[r]);
    int32_t* const row = out + r * columns;
    const size_t first = step.blocks.size();
    for (int64_t i = 0; i < needed; ++i) {
      const int32_t block = table.blocks[static_cast<size_t>(i)];
      store_.lease(block, Hold::kStep);
      step.blocks.push_back(block);
      row[i] = block;
    }
    std::fill(row + needed, row + columns, 0);
    step.rows.push_back({tables[r], ends[r], first, step.blocks.size()});
  }
  return id;
}

void BlockPool::check_commit(const Step& step, const uint8_t* alive, const int32_t* computed, const int32_t* tokens,
                             int64_t rows) {
  const char* const op = "commit_step";
  if (rows != static_cast<int64_t>(step.rows.size())) {
    refuse(op, "there are " + std::to_string(rows) + " rows; the step has " + std::to_string(step.rows.size()));
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (!alive[r]) continue;
    const Row& row = step.rows[static_cast<size_t>(r)];
    Table* const table = tables_.find(row.table);
    if (!table) {
      refuse(op, at("alive", r) + " is true, but its table " + std::to_string(row.table) + " is closed",
             "pass false for a request that has left");
    }
    const auto known = static_cast<int64_t>(table->tokens.size());
    const std::string what = at("computed", r);
    not_negative(op, what.c_str(), computed[r]);
    if (computed[r] > row.end) {
      refuse(op, what + " is " + std::to_string(computed[r]) + "; the step ends at " + std::to_string(row.end));
    }
    if (computed[r] > known) {
      refuse(op, what + " is " + std::to_string(computed[r]) + "; the table knows " + std::to_string(known) + " tokens");
    }
    if (tokens[r] >= 0) make_room(table->tokens, 1);
  }
}

int64_t BlockPool::commit_table(Table& table, int64_t computed) {
  const int64_t full = computed / block_size_;
  int64_t commits = 0;
  while (table.committed < full) {
    const int64_t i = table.committed;
    const int32_t parent = i == 0 ? kNone : table.blocks[static_cast<size_t>(i - 1)];
    const Digest digest = hasher_.next(i == 0 ? table.root : store_.at(parent).digest, table.tokens.data() + i * block_size_);
    int32_t& entry = table.blocks[static_cast<size_t>(i)];
    const int32_t indexed = store_.find(digest);
    if (indexed == kNone) {
      store_.commit(entry, digest, parent);
      ++commits;
    } else {  // another request computed the same: use its block, so that tables and index agree
      store_.lease(indexed, Hold::kOther);
      store_.release(entry, Hold::kOther);
      entry = indexed;
      ++duplicates_;
    }
    ++table.committed;
  }
  commits_ += commits;
  return commits;
}

void BlockPool::release_row(const Step& step, const Row& row) {
  for (size_t i = row.last; i-- > row.first;) store_.release(step.blocks[i], Hold::kStep);
}

int64_t BlockPool::commit_step(int64_t id, const uint8_t* alive, const int32_t* computed, const int32_t* tokens, int64_t rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Step& step = step_of(id, "commit_step");
  check_commit(step, alive, computed, tokens, rows);
  int64_t commits = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const Row& row = step.rows[static_cast<size_t>(r)];
    if (alive[r]) {
      Table& table = *tables_.find(row.table);
      if (tokens[r] >= 0) table.tokens.push_back(tokens[r]);
      commits += commit_table(table, computed[r]);
    }
    release_row(step, row);
  }
  steps_.remove(id);
  return commits;
}

void BlockPool::drop_step(int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Step& step = step_of(id, "drop_step");
  for (const Row& row : step.rows) release_row(step, row);
  steps_.remove(id);
}

int64_t BlockPool::lease(const int64_t* ids, int64_t count, LeaseKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Life wanted = kind == LeaseKind::kLoad ? Life::kPending : Life::kCommitted;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t block = store_.find(ids[i]);
    if (block == kNone)
      refuse("lease", at("ids", i) + " is " + std::to_string(ids[i]) + ", which is stale or never was a block");
    if (store_.at(block).life != wanted) {
      refuse("lease", at("ids", i) + " is " + block_name(store_, block) +
                          (wanted == Life::kPending ? ", which is committed; LOAD is for blocks that are being written"
                                                    : ", which is being written; SWAP and STORE are for committed blocks"));
    }
  }
  const int64_t id = transfers_.add();
  std::vector<int32_t>& blocks = transfers_.find(id)->blocks;
  try {
    blocks.clear();
    blocks.reserve(static_cast<size_t>(count));
  } catch (...) {
    transfers_.remove(id);
    throw;
  }
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back(index_of(ids[i]));
    store_.lease(blocks.back(), Hold::kOther);
  }
  return id;
}

void BlockPool::release(int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Transfer* const transfer = transfers_.find(id);
  if (!transfer) refuse("release", "lease " + std::to_string(id) + " was released already");
  // From the end, as a table does: ids mostly come in the order of a table.
  for (size_t i = transfer->blocks.size(); i-- > 0;) store_.release(transfer->blocks[i], Hold::kOther);
  transfers_.remove(id);
}

void BlockPool::abandon(int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (transfers_.find(id)) ++abandoned_;
}

int64_t BlockPool::drop_cached() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t count = store_.evictable();
  for (int64_t i = 0; i < count; ++i) store_.evict();
  return count;
}

PoolStats BlockPool::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const BlockCounts& c = store_.counts();
  return {blocks(),           c.free,
          c.pending,          c.committed,
          c.cached,           store_.evictable(),
          c.draining,         c.pending + c.committed,
          tables_.live(),     steps_.live(),
          transfers_.live(),  store_.allocations(),
          store_.evictions(), commits_,
          duplicates_,        hit_tokens_,
          queried_tokens_,    abandoned_};
}

}  // namespace accel::core
