// One simulated device: streams, events and the two executors.
//
//   stream   [ wait p | copy | launch | record q ]     head first; a wait holds the stream until its point is done
//   point    not done -> done (reached) or abandoned (its device closed first); never undone
//   event    -> the point of its newest record; a gate is a point the host sets
//
//   threaded   each stream has a worker thread that runs its head
//   seeded     nothing runs by itself: query, wait and synchronise run heads chosen by a seeded generator on the caller's
//              thread, so that the same calls with the same seed give the same interleaving
//
// Invariant: one lock (world()) guards all state of all simulated devices; it is never held while work or a release runs.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "accel/runtime.h"
#include "checker.h"
#include "clock.h"
#include "faults.h"
#include "memory.h"

namespace accel::sim {

using Time = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  Clock host;             // what the host knows; all its threads are one actor
  size_t next_actor = 1;  // 0 is the host
};
World& world();

struct Options {
  size_t limit = size_t{1} << 30;
  bool seeded = false;
  uint64_t seed = 0;
  bool check = true;             // run the happens-before checker
  bool emulated_events = false;  // record blocks until the stream has reached it
  bool memory_info = true;
  bool oom_retry = true;  // an allocation that does not fit waits for what the compute stream will free
};

struct PointState {
  bool done = false, abandoned = false;
  Time::time_point time{};
  Clock clock;
};
using PointPtr = std::shared_ptr<PointState>;

struct Task {
  const char* op = "";
  std::function<int32_t(char* error, size_t size)> run;  // empty: nothing to run
  std::function<void()> release;
  PointPtr after;   // holds the stream until done
  PointPtr signal;  // done when the task has run or was skipped
  Clock submitted;  // what the submitter knew
  std::vector<Range> accesses;
  SitePtr site;
  std::string fault;    // decided when it was submitted
  bool always = false;  // runs on a failed stream too
  int64_t delay = 0;    // other tasks that run first, as long as there are any
  int64_t due = -1;     // set when it becomes the head
};

class Machine;

struct Stream {
  Machine* machine = nullptr;
  size_t actor = 0;
  int number = 0;  // 0 is the compute stream
  std::deque<Task> queue;
  Clock clock;
  bool running = false, stopped = false, retired = false, ended = false, skipping = false;
  const char* running_op = "";
  SitePtr running_site;
  std::string failure;  // not yet reported
  uint64_t submitted = 0, completed = 0;
  std::thread thread;

  std::string name() const { return "stream " + std::to_string(number); }
  bool idle() const { return queue.empty() && !running; }
};
using StreamPtr = std::shared_ptr<Stream>;

struct Counters {
  uint64_t frees = 0, bytes_copied = 0, fills = 0, waits = 0, queries = 0, executed = 0, skipped = 0;
};

class Machine : public std::enable_shared_from_this<Machine> {
 public:
  explicit Machine(const Options& options);
  ~Machine();

  const Options options;

  // All of these are called with the world locked, except where a Lock is taken along (released while work runs) or it says so.
  void start();  // makes the compute stream; not locked
  StreamPtr add_stream();
  StreamPtr compute() const { return compute_; }
  void retire(Stream& stream, Lock& lock);
  void submit(Stream& stream, Task task);
  AccelStatus take_failure(Stream& stream);
  AccelStatus synchronize(Stream& stream, Time::time_point limit, Lock& lock);
  // False when the limit passed first.
  bool await(const std::function<bool()>& done, Time::time_point limit, Lock& lock);
  // Runs a few heads when seeded; else nothing.
  void advance(Lock& lock);
  void stop();
  bool ended(Time::time_point limit, std::string* op, Lock& lock);
  void close();  // not locked
  std::vector<StreamPtr> streams() const;

  Task task(const char* op);
  SitePtr site(const char* op, const std::string& actor) const;
  void note(Stream& stream, const Task& task);
  void note_host(const Range& range, const char* op);

  Memory memory;
  Faults faults;
  Checker checker;
  Counters counters;
  std::map<std::string, int64_t> delays;  // op -> other tasks that run first
  std::vector<std::string> trace;         // "stream:op" in the order they ran
  size_t events = 0, gates = 0;
  bool closed = false;

 private:
  bool ready(Stream& stream);
  void unblock_delayed();
  void step(Stream& stream, Lock& lock);
  bool step_any(Lock& lock);
  void worker(const StreamPtr& stream);
  void reap();

  pid_t process_;
  StreamPtr compute_;
  std::vector<StreamPtr> streams_;
  std::mt19937_64 random_;
  int64_t virtual_time_ = 0;
  int next_number_ = 0;
  std::thread::id driver_;  // seeded: the thread that runs work now
  int depth_ = 0;           // and how often it has come in again
};

// Device the next device_open of this thread makes; null: one with default options.
void set_next(std::shared_ptr<Machine> machine);
std::shared_ptr<Machine> take_next();

// The stream whose work this thread runs, or null.
Stream* current_stream();

// Where a submission comes from, as the embedder knows it ("swap.py:88"). Asked without any lock when the checker is on.
void set_site_hook(std::string (*hook)());
// Asks now, for what this thread submits next.
void mark_site(const Machine& machine);

// Message of the last failing call on this thread.
const char* last_error();
AccelStatus fail(AccelStatus status, std::string message);

Time::time_point limit_after(int64_t timeout_ns);

}  // namespace accel::sim
