// Pages as bytes: gather, scatter, copy, zero, checksum. Nothing here looks at a value.
#pragma once

#include <cstring>

#include "kernels.h"
#include "scratch.h"
#include "sizes.inl"
#include "thread_pool.h"

namespace accel::cpu {
namespace {

ACCEL_INLINE std::byte* page_run(const PagePool& pool, int64_t block, int64_t run) {
  return pool.data + block * pool.block_stride + run * pool.run_stride;
}

// body(index into the list, run) over all runs of `count` pages, 64 KiB or more to a thread.
template <typename Body>
ACCEL_INLINE void for_each_run(ThreadPool& threads, const PagePool& pool, int64_t count, const Body& body) {
  const int64_t grain = larger(1, 65536 / larger(pool.run_bytes, 1));
  threads.parallel_for(count * pool.outer, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i / pool.outer, i % pool.outer);
  });
}

void pages_gather(ThreadPool& threads, std::byte* out, const PagePool& pool, const int32_t* blocks, int64_t count) {
  const int64_t page_bytes = pool.outer * pool.run_bytes;
  for_each_run(threads, pool, count, [&](int64_t i, int64_t run) {
    std::memcpy(out + i * page_bytes + run * pool.run_bytes, page_run(pool, blocks[i], run),
                static_cast<size_t>(pool.run_bytes));
  });
}

void pages_scatter(ThreadPool& threads, const std::byte* in, const PagePool& pool, const int32_t* blocks, int64_t count) {
  const int64_t page_bytes = pool.outer * pool.run_bytes;
  for_each_run(threads, pool, count, [&](int64_t i, int64_t run) {
    std::memcpy(page_run(pool, blocks[i], run), in + i * page_bytes + run * pool.run_bytes,
                static_cast<size_t>(pool.run_bytes));
  });
}

void pages_copy(ThreadPool& threads, const PagePool& pool, const int32_t* from, const int32_t* to, int64_t count) {
  for_each_run(threads, pool, count, [&](int64_t i, int64_t run) {
    std::memcpy(page_run(pool, to[i], run), page_run(pool, from[i], run), static_cast<size_t>(pool.run_bytes));
  });
}

void pages_zero(ThreadPool& threads, const PagePool& pool, const int32_t* blocks, int64_t count) {
  for_each_run(threads, pool, count, [&](int64_t i, int64_t run) {
    std::memset(page_run(pool, blocks[i], run), 0, static_cast<size_t>(pool.run_bytes));
  });
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
ACCEL_INLINE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Words [0, words) of `data`, which are words first … of the page. The sum has no order, so the compiler may vectorise it.
uint64_t checksum_words(const std::byte* data, int64_t words, int64_t first) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < words; ++i) {
    uint32_t word;
    std::memcpy(&word, data + 4 * i, sizeof word);
    sum += mix(word + static_cast<uint64_t>(first + i + 1) * 0x9E3779B97F4A7C15u);
  }
  return sum;
}

// A page whose runs are no whole words is put together first; a last incomplete word is filled with zeros.
uint64_t checksum_joined(const PagePool& pool, int64_t block) {
  const int64_t bytes = pool.outer * pool.run_bytes, words = divide_up(bytes, 4);
  auto* page = static_cast<std::byte*>(scratch(Scratch::kLocal, static_cast<size_t>(words) * 4));
  for (int64_t run = 0; run < pool.outer; ++run) {
    std::memcpy(page + run * pool.run_bytes, page_run(pool, block, run), static_cast<size_t>(pool.run_bytes));
  }
  std::memset(page + bytes, 0, static_cast<size_t>(words * 4 - bytes));
  return checksum_words(page, words, 0);
}

void pages_checksum(ThreadPool& threads, uint64_t* out, const PagePool& pool, const int32_t* blocks, int64_t count) {
  const int64_t page_bytes = pool.outer * pool.run_bytes;
  threads.parallel_for(count, larger(1, 32768 / larger(page_bytes, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (pool.run_bytes % 4 != 0) {
        out[i] = checksum_joined(pool, blocks[i]);
        continue;
      }
      uint64_t sum = 0;
      for (int64_t run = 0; run < pool.outer; ++run) {
        sum += checksum_words(page_run(pool, blocks[i], run), pool.run_bytes / 4, run * (pool.run_bytes / 4));
      }
      out[i] = sum;
    }
  });
}

}  // namespace
}  // namespace accel::cpu
