// Fork-join with bounded spinning.
//
//                 publish: generation + 1, OPEN                      close: not OPEN; wait for active = 0
//   caller   ─────┬──── claim chunks ──────────────────────────┬──── (spin 20 us, then sleep) ──── return
//   worker   spin 20 us │ join: active + 1 │ claim chunks │ leave: active - 1 │ spin, then sleep on the generation
//
// Invariants
//   * A worker touches a job only between join and leave, and join succeeds only while the job is OPEN. So a worker that the
//     system runs late neither delays the caller nor sees a finished job; the caller can claim every chunk itself.
//   * A body that throws ends the job early: the first exception is kept, no further chunk is claimed, and the caller rethrows
//     it once every worker has left. Kept before leave, read after active = 0, so it needs no lock.
//   * Nobody spins longer than kSpin: a spinning thread takes the core its peer may be waiting for.
//   * In a child of fork the workers do not exist: its pools run inline.
#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "fp_env.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#else
#include <condition_variable>
#endif

namespace accel::cpu {
namespace {

constexpr std::chrono::microseconds kSpin{20};
constexpr int64_t kChunksPerThread = 4;  // enough that an uneven start evens out, few enough that claiming costs nothing

// True on a pool's own worker, and on a caller inside a job: a nested call runs inline.
thread_local bool inside_job = false;

class InsideJob {
 public:
  InsideJob() { inside_job = true; }
  ~InsideJob() { inside_job = false; }
  InsideJob(const InsideJob&) = delete;
  InsideJob& operator=(const InsideJob&) = delete;
};

// Rises in the child of every fork.
std::atomic<uint32_t> fork_count{0};

uint32_t watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return fork_count.load(std::memory_order_relaxed);
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

template <typename Done>
bool spin_until(const Done& done) {
  if (done()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 8; ++i) {
      if (done()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// A counter that can be waited on: a futex.
class WaitWord {
 public:
  uint32_t load() const { return word_.load(std::memory_order_acquire); }

  void raise_and_wake(int most) {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake(most);
  }

  // Returns at once if the counter is no longer `seen`; may return early. Either the raiser sees this sleeper or the
  // sleeper sees the raise: both sides write before they read.
  void sleep_while(uint32_t seen) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (word_.load(std::memory_order_seq_cst) == seen) wait(seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
#if defined(__linux__)
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain 32-bit word");
  void wake(int most) { syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0); }
  void wait(uint32_t seen) { syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0); }
#else
  void wake(int) {
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }
  void wait(uint32_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return word_.load(std::memory_order_seq_cst) != seen; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
#endif
  std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// The one or two integers a small file begins with; how many were read ("max" is no integer).
int read_numbers(const char* path, long long* first, long long* second) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  const int found = std::fscanf(file, "%lld %lld", first, second);
  std::fclose(file);
  return std::max(found, 0);
}

// CPUs a container's quota pays for, or a large number: cgroup v2, then v1, as a container sees them (mounted at its root).
int quota_threads() {
  long long quota = 0, period = 0, unused = 0;
  if (read_numbers("/sys/fs/cgroup/cpu.max", &quota, &period) < 2) {
    if (read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota, &unused) < 1) quota = 0;
    if (read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &unused) < 1) period = 0;
  }
  if (quota <= 0 || period <= 0) return 1 << 20;
  return static_cast<int>(std::min(1LL << 20, std::max(1LL, (quota + period - 1) / period)));
}

}  // namespace

struct ThreadPool::Impl {
  // state: bits 0 to 15 workers inside the job, bit 16 OPEN.
  static constexpr uint32_t kOpen = 1u << 16;

  uint32_t born = watch_forks();
  std::mutex turn;  // callers take turns
  std::vector<std::thread> workers;

  // The job. Written by the caller while no worker is inside.
  Fn fn = nullptr;
  const void* ctx = nullptr;
  int64_t count = 0, chunk = 1;
  std::exception_ptr failure;  // written by whoever sets `failed`
  std::atomic<bool> failed{false};

  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<uint32_t> state{0};
  WaitWord generation;
  WaitWord left;  // rises when the last worker leaves a closed job
  std::atomic<bool> stopping{false};

  bool is_fork() const { return fork_count.load(std::memory_order_relaxed) != born; }

  // noexcept: an exception that went on from here would leave workers inside a job whose context is gone.
  void claim_chunks() noexcept {
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
        if (begin >= count) return;
        fn(ctx, begin, std::min(begin + chunk, count));
      }
    } catch (...) {
      if (!failed.exchange(true, std::memory_order_relaxed)) failure = std::current_exception();
    }
  }

  bool join() {
    uint32_t seen = state.load(std::memory_order_acquire);
    while ((seen & kOpen) != 0) {
      if (state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void leave() {
    if (state.fetch_sub(1, std::memory_order_acq_rel) == 1) left.raise_and_wake(1);  // 1: closed, and the last inside
  }

  void work() {
    inside_job = true;
    const DefaultFloatEnvironment environment;
    uint32_t seen = 0;
    for (;;) {
      if (!spin_until([&] { return generation.load() != seen; })) generation.sleep_while(seen);
      const uint32_t now = generation.load();
      if (now == seen) continue;
      seen = now;
      if (stopping.load(std::memory_order_acquire)) return;
      if (join()) {
        claim_chunks();
        leave();
      }
    }
  }

  void run_job(int64_t items, int64_t grain, Fn body, const void* context) {
    const std::lock_guard<std::mutex> lock(turn);
    const auto threads = static_cast<int64_t>(workers.size()) + 1;
    fn = body;
    ctx = context;
    count = items;
    chunk = std::max(grain, (items + threads * kChunksPerThread - 1) / (threads * kChunksPerThread));
    failed.store(false, std::memory_order_relaxed);
    next.store(0, std::memory_order_relaxed);
    state.store(kOpen, std::memory_order_release);
    const int64_t helpers = std::min((items + chunk - 1) / chunk, threads) - 1;
    generation.raise_and_wake(static_cast<int>(helpers));
    claim_chunks();
    state.fetch_and(~kOpen, std::memory_order_acq_rel);
    const auto nobody_inside = [&] { return state.load(std::memory_order_acquire) == 0; };
    while (!spin_until(nobody_inside)) {
      const uint32_t before = left.load();
      if (nobody_inside()) break;
      left.sleep_while(before);
    }
    if (const std::exception_ptr thrown = std::exchange(failure, nullptr)) std::rethrow_exception(thrown);
  }
};

ThreadPool::ThreadPool(int threads) : impl_(new Impl) {
  if (threads <= 0) threads = std::min(affinity_threads(), quota_threads());
  threads = std::min(threads, 1 << 12);
  // Signals belong to the host program's threads: Python runs its handlers on one of them.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  try {
    for (int i = 1; i < threads; ++i) impl_->workers.emplace_back([impl = impl_.get()] { impl->work(); });
  } catch (const std::system_error&) {
    // The system has no more threads to give: fewer do the same work.
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

ThreadPool::~ThreadPool() {
  if (impl_->is_fork()) {
    impl_.release();  // NOLINT: its threads never existed in this process, so there is nobody to join
    return;
  }
  impl_->stopping.store(true, std::memory_order_release);
  impl_->generation.raise_and_wake(1 << 30);
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::run(int64_t count, int64_t grain, Fn fn, const void* ctx) {
  if (count <= 0) return;
  const DefaultFloatEnvironment environment;
  if (inside_job || count <= grain || impl_->workers.empty() || impl_->is_fork()) {
    fn(ctx, 0, count);
    return;
  }
  const InsideJob inside;
  impl_->run_job(count, std::max<int64_t>(grain, 1), fn, ctx);
}

int affinity_threads() {
  for (int cpus = 1024; cpus <= 1 << 18; cpus *= 2) {  // the kernel refuses a mask smaller than its own
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace accel::cpu
