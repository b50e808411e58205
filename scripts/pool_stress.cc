// Drives one block pool from many threads with random verbs, for a sanitizer to watch: requests that open, grow, step and leave
// with steps in flight, transfers that hold blocks, the cache dropped under them. Built and run by scripts/sanitize.sh.
// Exits 1 when a result is wrong or check() finds something; a data race is the sanitizer's to report.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../csrc/core/block_pool.h"
#include "accel/error.h"

namespace {

using accel::core::BlockPool;
using accel::core::Digest;
using accel::core::LeaseKind;
using accel::core::PoolStats;

constexpr int kThreads = 4, kRounds = 20000;
constexpr int64_t kBlocks = 64, kBlockSize = 4, kColumns = 16;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "pool_stress: %s\n", what);
  std::exit(1);
}

// One thread: a few requests and the steps and leases that it has under way. Others share the cache, not the tables.
class Worker {
 public:
  Worker(BlockPool& pool, uint32_t seed) : pool_(pool), random_(seed) {}

  void run() {
    for (int i = 0; i < kRounds; ++i) round();
    for (const auto& [step, table] : steps_) pool_.drop_step(step);
    for (const int64_t table : tables_) pool_.close_table(table);
    for (const int64_t lease : leases_) pool_.release(lease);
  }

 private:
  int64_t below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(end)); }
  // Takes one out of a list, in any order.
  template <typename T>
  T take(std::vector<T>& list) {
    std::swap(list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))], list.back());
    T item = list.back();
    list.pop_back();
    return item;
  }

  void round() {
    switch (below(8)) {
      case 0:
      case 1:
        return open();
      case 2:
        if (!tables_.empty()) pool_.close_table(take(tables_));
        return;
      case 3:
        return begin();
      case 4:
        return commit();
      case 5:
        return lease();
      case 6:
        if (!leases_.empty()) pool_.release(take(leases_));
        return;
      default:
        return look();
    }
  }

  void open() {
    if (tables_.size() > 3) pool_.close_table(take(tables_));
    std::vector<int32_t> tokens(static_cast<size_t>(below(40)), static_cast<int32_t>(below(3)));
    tokens.resize(tokens.size() + static_cast<size_t>(below(24)), static_cast<int32_t>(below(3)));
    const auto opened = pool_.open(Digest{}, tokens.data(), static_cast<int64_t>(tokens.size()), below(10), below(3));
    if (opened) tables_.push_back(opened->table);
  }

  void begin() {
    if (tables_.empty()) return;
    const int64_t table = tables_[static_cast<size_t>(below(static_cast<int64_t>(tables_.size())))];
    const auto known = static_cast<int32_t>(pool_.table_tokens(table).size());
    if (known > kColumns * kBlockSize || pool_.grow(&table, &known, 1) == 0) return;
    int32_t out[kColumns];
    steps_.emplace_back(pool_.begin_step(&table, &known, 1, out, kColumns), table);
  }

  void commit() {
    if (steps_.empty()) return;
    const auto [step, table] = take(steps_);
    bool open = false;
    for (const int64_t other : tables_) open = open || other == table;
    const uint8_t alive = open;
    const auto computed = static_cast<int32_t>(open ? below(static_cast<int64_t>(pool_.table_tokens(table).size()) + 1) : 0);
    const auto token = static_cast<int32_t>(below(3)) - 1;
    try {
      pool_.commit_step(step, &alive, &computed, &token, 1);
    } catch (const accel::Error&) {  // computed beyond the step's end: it is still there to be dropped
      pool_.drop_step(step);
    }
  }

  void lease() {
    if (tables_.empty()) return;
    const std::vector<int64_t> ids = pool_.table_blocks(tables_.back());
    if (ids.empty() || leases_.size() > 2) return;
    try {
      leases_.push_back(pool_.lease(&ids[0], 1, below(2) ? LeaseKind::kStore : LeaseKind::kLoad));
    } catch (const accel::Error&) {  // not of this kind: nothing was taken
    }
  }

  void look() {
    const PoolStats s = pool_.stats();
    require(s.owned + s.cached + s.free == s.blocks, "blocks are missing from the stats");
    const std::vector<int32_t> tokens(40, static_cast<int32_t>(below(3)));
    require(pool_.match(Digest{}, tokens.data(), 40, 5) <= 5, "match went beyond the limit");
    if (below(20) == 0) pool_.drop_cached();
    if (below(20) == 0) pool_.check();
    try {
      pool_.close_table(7);
      require(false, "a table that never was could be closed");
    } catch (const accel::Error&) {
    }
  }

  BlockPool& pool_;
  std::mt19937 random_;
  std::vector<int64_t> tables_, leases_;
  std::vector<std::pair<int64_t, int64_t>> steps_;  // and the table of each
};

}  // namespace

int main() {
  try {
    BlockPool pool(kBlocks, kBlockSize);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&pool, i] {
        try {
          Worker(pool, i).run();
        } catch (const accel::Error& error) {
          require(false, error.what());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    pool.check();
    PoolStats s = pool.stats();
    require(s.owned == 0 && s.tables == 0 && s.steps == 0 && s.leases == 0, "something is still held");
    require(s.commits > 100 && s.duplicates > 0 && s.evictions > 0 && s.hit_tokens > 0, "the run was too tame");
    pool.drop_cached();
    pool.check();
    require(pool.stats().free == kBlocks, "blocks were lost");
    std::printf("pool_stress: %lld commits, %lld duplicates, %lld evictions, %lld hit tokens\n",
                static_cast<long long>(s.commits), static_cast<long long>(s.duplicates), static_cast<long long>(s.evictions),
                static_cast<long long>(s.hit_tokens));
  } catch (const accel::Error& error) {
    require(false, error.what());
  }
  return 0;
}
