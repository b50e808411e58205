// Streams and events of the host runtime.
//
// A *completion* is a point in a stream: done once, never undone. Everything that waits waits for completions, so an event
// is nothing but the completions its newest record stands for, and a gate is a completion that the host sets.
//
//   worker stream        inline stream (compute)
//   queue ──> thread     the caller's thread runs the work at once;
//                        completions it was told to wait for are awaited first, with a limit
//
// Invariant: a completion is signalled outside every lock but its own, and a stream's lock is never held while work runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "accel/runtime.h"

namespace accel::host {

using Clock = std::chrono::steady_clock;

class Completion {
 public:
  void signal() { complete(false); }
  // Done as well, so that nobody waits for ever, but what it stands for did not happen.
  void abandon() { complete(true); }
  bool abandoned() const { return done() && abandoned_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  Clock::time_point time() const { return time_; }  // valid once done
  // False when the limit passed first.
  bool wait_until(Clock::time_point limit);
  // Call `wake` once when done (at once if it already is).
  void on_signal(std::function<void()> wake);

 private:
  void complete(bool abandoned);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  bool abandoned_ = false;  // set before done_
  Clock::time_point time_{};
  std::vector<std::function<void()>> wakes_;
};

using CompletionPtr = std::shared_ptr<Completion>;
using Completions = std::vector<CompletionPtr>;

// A unit of queued work: plain data, so that skipping it and running it release the same things.
struct Task {
  const char* op = "";
  std::function<int32_t(char* error, size_t size)> run;  // empty: nothing to run
  std::function<void()> release;                         // empty: nothing to release
  Completions after;                                     // start only when all of these are done
  CompletionPtr signal;                                  // set when the task has run or was skipped
};

// Turns a timeout into a point in time without overflow.
Clock::time_point limit_after(int64_t timeout_ns);

}  // namespace accel::host

struct AccelStream {
  virtual ~AccelStream() = default;
  // Queue or run one task. The error of work that runs inline is kept for the next query or synchronise, as for queued work.
  virtual AccelStatus submit(accel::host::Task task) = 0;
  virtual AccelStatus query() = 0;
  virtual AccelStatus synchronize(accel::host::Clock::time_point limit) = 0;
  virtual void reset() = 0;
  virtual void wait(const accel::host::Completions& completions) = 0;
  // Completions that stand for everything submitted so far.
  virtual accel::host::Completions mark() = 0;
  virtual bool is_inline() const = 0;
  // Abandon queued work and stop; used when the device closes.
  virtual void stop() = 0;
  // Accept nothing more and end once the queue is empty; `retired` says when that has happened. Does not block.
  virtual void retire() = 0;
  virtual bool retired() = 0;
  // Wait for the thread's end after stop or retire; false when `op` still runs at the limit.
  virtual bool ended(accel::host::Clock::time_point limit, std::string* op) = 0;

  AccelDevice* device = nullptr;
};

struct AccelEvent {
  explicit AccelEvent(bool timed) : timing(timed) {}
  const bool timing;
  std::mutex mutex;
  bool recorded = false;
  accel::host::Completions newest;
};

struct AccelGate {
  accel::host::CompletionPtr completion;
};

namespace accel::host {

std::unique_ptr<AccelStream> make_worker_stream();
std::unique_ptr<AccelStream> make_inline_stream();

// Message of the last failing call on this thread, and a way to set it that reads well at the return statement.
const char* last_error();
AccelStatus fail(AccelStatus status, std::string message);

}  // namespace accel::host
