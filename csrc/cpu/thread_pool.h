// Fork-join over a fixed set of threads.
//
// Invariant: how work is divided never changes a result, so the pool may hand out chunks in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace accel::cpu {

class ThreadPool {
 public:
  // threads = 0: one for each CPU this process may run on (the affinity mask, and no more than a container's CPU quota).
  // In a child of fork the workers are gone: a pool made before runs everything inline; make a new one to use threads.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Call body(begin, end) until [0, count) is covered, in chunks of at least `grain`. The caller takes part; returns when all
  // is done. Runs inline when count <= grain or there is one thread. Calls from several host threads take turns. When body
  // throws, parts of [0, count) may be left out, and the first exception is thrown here after every thread has let go.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    run(count, grain, [](const void* ctx, int64_t begin, int64_t end) { (*static_cast<const Body*>(ctx))(begin, end); }, &body);
  }

 private:
  using Fn = void (*)(const void* ctx, int64_t begin, int64_t end);
  void run(int64_t count, int64_t grain, Fn fn, const void* ctx);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Number of CPUs in this process's affinity mask.
int affinity_threads();

}  // namespace accel::cpu
