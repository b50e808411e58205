#include "machine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace accel::sim {
namespace {

constexpr size_t kErrorSize = 512;
constexpr size_t kMostTrace = 100000;
constexpr const char* kAbandoned = "waited for work that was abandoned when its device closed";

thread_local std::string g_last_error;
thread_local std::string g_where;
thread_local Stream* g_current = nullptr;
thread_local std::shared_ptr<Machine> g_next;
std::string (*g_site_hook)() = nullptr;

void complete(const PointPtr& point, bool abandoned) {
  if (!point || point->done) return;
  point->done = true;
  point->abandoned = abandoned;
  point->time = Time::now();
}

// Runs something of the embedder's on behalf of a stream.
template <typename Call>
void on_behalf_of(Stream& stream, const Call& call) {
  Stream* const before = std::exchange(g_current, &stream);
  call();
  g_current = before;
}

}  // namespace

namespace {

// Never destroyed: threads may outlive static objects.
World* g_world = new World;

// A forked child has none of the threads that wait on the parent's world, so it gets one of its own. The lock is taken for the
// fork, so that what is copied is whole.
const int g_fork_handler = pthread_atfork([] { g_world->mutex.lock(); }, [] { g_world->mutex.unlock(); },
                                          [] {
                                            auto* const fresh = new World;
                                            fresh->host = g_world->host;
                                            fresh->next_actor = g_world->next_actor;
                                            g_world = fresh;
                                          });

}  // namespace

World& world() {
  (void)g_fork_handler;
  return *g_world;
}

void set_next(std::shared_ptr<Machine> machine) { g_next = std::move(machine); }
std::shared_ptr<Machine> take_next() { return std::exchange(g_next, nullptr); }
Stream* current_stream() { return g_current; }
void set_site_hook(std::string (*hook)()) { g_site_hook = hook; }

void mark_site(const Machine& machine) { g_where = machine.options.check && g_site_hook ? g_site_hook() : std::string(); }

const char* last_error() { return g_last_error.c_str(); }

AccelStatus fail(AccelStatus status, std::string message) {
  g_last_error = std::move(message);
  return status;
}

Time::time_point limit_after(int64_t timeout_ns) {
  constexpr int64_t kYear = int64_t{365} * 24 * 3600 * 1000000000;
  return Time::now() + std::chrono::nanoseconds(std::clamp<int64_t>(timeout_ns, 0, kYear));
}

Machine::Machine(const Options& chosen) : options(chosen), memory(chosen.limit), process_(getpid()), random_(chosen.seed) {}

Machine::~Machine() { close(); }

void Machine::start() {
  const std::lock_guard<std::mutex> lock(world().mutex);
  compute_ = add_stream();
}

std::vector<StreamPtr> Machine::streams() const { return streams_; }

StreamPtr Machine::add_stream() {
  reap();
  auto stream = std::make_shared<Stream>();
  stream->machine = this;
  stream->actor = world().next_actor++;
  stream->number = next_number_++;
  streams_.push_back(stream);
  if (!options.seeded) stream->thread = std::thread([this, stream] { worker(stream); });
  return stream;
}

// Drops destroyed streams that have ended. Their threads set `ended` as the last thing they do under the lock.
void Machine::reap() {
  const auto gone = [this](const StreamPtr& s) {
    if (!s->retired || (options.seeded ? !s->idle() : !s->ended)) return false;
    if (s->thread.joinable()) s->thread.join();
    return true;
  };
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(), gone), streams_.end());
}

void Machine::retire(Stream& stream, Lock&) {
  stream.retired = true;
  world().changed.notify_all();
}

Task Machine::task(const char* op) {
  Task made;
  made.op = op;
  made.submitted = world().host;
  if (g_current) made.submitted.join(g_current->clock);
  if (const auto it = delays.find(op); it != delays.end()) made.delay = it->second;
  return made;
}

SitePtr Machine::site(const char* op, const std::string& actor) const {
  return std::make_shared<const Site>(Site{op, actor, g_where});
}

void Machine::submit(Stream& stream, Task task) {
  if (!task.site && options.check) task.site = site(task.op, stream.name());
  stream.queue.push_back(std::move(task));
  ++stream.submitted;
  world().changed.notify_all();
}

AccelStatus Machine::take_failure(Stream& stream) {
  if (stream.failure.empty()) return ACCEL_OK;
  return fail(ACCEL_ASYNC_FAILURE, std::exchange(stream.failure, {}));
}

// --- the checker -----------------------------------------------------------------------------------------------------

void Machine::note(Stream& stream, const Task& task) {
  if (!options.check) return;
  for (const Range& range : task.accesses) checker.note(range, stream.actor, stream.clock, task.site);
}

void Machine::note_host(const Range& range, const char* op) {
  if (!options.check) return;
  if (g_current) {  // the host's own code, but on a stream: it is ordered as the stream is
    checker.note(range, g_current->actor, g_current->clock, site(op, g_current->name()));
    return;
  }
  world().host.tick(0);
  checker.note(range, 0, world().host, site(op, "the host"));
}

// --- running ---------------------------------------------------------------------------------------------------------

bool Machine::ready(Stream& stream) {
  if (stream.queue.empty() || stream.running || stream.stopped) return false;
  Task& head = stream.queue.front();
  if (head.after && !head.after->done) return false;
  if (head.delay == 0) return true;
  if (head.due < 0) head.due = virtual_time_ + head.delay;
  return virtual_time_ >= head.due;
}

// Delays count other tasks, so when there is nothing else to run, time jumps to the first that waits.
void Machine::unblock_delayed() {
  int64_t first = -1;
  for (const StreamPtr& s : streams_) {
    if (s->running || ready(*s)) return;
    if (s->queue.empty() || s->stopped || s->queue.front().due < 0) continue;
    const int64_t due = s->queue.front().due;
    if (first < 0 || due < first) first = due;
  }
  if (first < 0) return;
  virtual_time_ = std::max(virtual_time_, first);
  world().changed.notify_all();
}

void Machine::step(Stream& stream, Lock& lock) {
  Task task = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.running = true;
  stream.running_op = task.op;
  stream.running_site = task.site;
  stream.clock.join(task.submitted);
  std::string error;
  if (task.after) {
    stream.clock.join(task.after->clock);
    if (task.after->abandoned && !stream.skipping) error = kAbandoned;
  }
  stream.clock.tick(stream.actor);
  const bool run = task.run && error.empty() && (!stream.skipping || task.always);
  if (!stream.skipping && error.empty()) error = task.fault;
  for (const Range& range : task.accesses) {
    if (!run || !error.empty()) break;
    const auto* const address = reinterpret_cast<const void*>(range.begin);
    if (memory.contains(address)) error = memory.check(address, range.end - range.begin);
  }
  if (run && error.empty()) {
    note(stream, task);
    if (options.seeded && trace.size() < kMostTrace) trace.push_back(std::to_string(stream.number) + ":" + task.op);
    lock.unlock();
    char message[kErrorSize] = "";
    on_behalf_of(stream, [&] {
      if (task.run(message, sizeof(message)) != 0) error = message[0] ? message : "failed without a message";
    });
    lock.lock();
    ++counters.executed;
  } else if (task.run) {
    ++counters.skipped;
  }
  if (task.run) ++virtual_time_;
  if (!error.empty() && !stream.skipping) {
    stream.skipping = true;
    stream.failure = std::string(task.op) + ": " + error + " [" + stream.name() + "]";
  }
  if (task.release) {
    lock.unlock();
    on_behalf_of(stream, task.release);
    task.release = nullptr;
    lock.lock();
  }
  lock.unlock();
  task.run = nullptr;  // what it holds goes without the lock
  lock.lock();
  if (task.signal) {
    task.signal->clock = stream.clock;
    complete(task.signal, false);
  }
  stream.running = false;
  ++stream.completed;
  world().changed.notify_all();
}

void Machine::worker(const StreamPtr& stream) {
  Lock lock(world().mutex);
  for (;;) {
    world().changed.wait(lock, [&] {
      if (stream->stopped || (stream->retired && stream->queue.empty())) return true;
      if (!ready(*stream)) unblock_delayed();
      return ready(*stream);
    });
    if (stream->stopped || stream->queue.empty()) break;
    step(*stream, lock);
  }
  stream->ended = true;
  world().changed.notify_all();
}

bool Machine::step_any(Lock& lock) {
  const std::thread::id self = std::this_thread::get_id();
  if (depth_ > 0 && driver_ != self) return false;  // another thread drives; its steps wake this one
  std::vector<StreamPtr> heads;
  for (int attempt = 0; attempt < 2 && heads.empty(); ++attempt) {
    if (attempt == 1) unblock_delayed();
    for (const StreamPtr& s : streams_) {
      if (ready(*s)) heads.push_back(s);
    }
  }
  if (heads.empty()) return false;
  const StreamPtr chosen = heads[random_() % heads.size()];
  driver_ = self;
  ++depth_;
  step(*chosen, lock);
  --depth_;
  return true;
}

void Machine::advance(Lock& lock) {
  if (!options.seeded) return;
  for (uint64_t steps = random_() % 3; steps > 0; --steps) {
    if (!step_any(lock)) return;
  }
}

bool Machine::await(const std::function<bool()>& done, Time::time_point limit, Lock& lock) {
  while (!done()) {
    if (options.seeded && step_any(lock)) continue;
    if (world().changed.wait_until(lock, limit) == std::cv_status::timeout) return done();
  }
  return true;
}

AccelStatus Machine::synchronize(Stream& stream, Time::time_point limit, Lock& lock) {
  const uint64_t target = stream.submitted;
  const bool in_time = await([&] { return stream.completed >= target || stream.stopped; }, limit, lock);
  if (in_time) world().host.join(stream.clock);
  if (const AccelStatus status = take_failure(stream); status != ACCEL_OK) return status;
  if (stream.completed >= target) return ACCEL_OK;
  if (stream.stopped) return fail(ACCEL_DEVICE_LOST, "the device was closed");
  return fail(ACCEL_TIMEOUT, stream.name() + " still has " + std::to_string(stream.queue.size() + (stream.running ? 1 : 0)) +
                                 " pieces of work");
}

// --- the end ---------------------------------------------------------------------------------------------------------

void Machine::stop() {
  for (const StreamPtr& s : streams_) s->stopped = true;
  world().changed.notify_all();
}

bool Machine::ended(Time::time_point limit, std::string* op, Lock& lock) {
  for (const StreamPtr& s : std::vector<StreamPtr>(streams_)) {
    const auto over = [&] { return options.seeded ? !s->running : s->ended; };
    while (!over()) {
      if (world().changed.wait_until(lock, limit) != std::cv_status::timeout || over()) continue;
      *op = s->running_op;
      return false;
    }
  }
  return true;
}

void Machine::close() {
  if (process_ != getpid()) {  // the parent's: its threads do not exist here, and may not be joined
    new std::vector<StreamPtr>(std::move(streams_));
    return;
  }
  Lock lock(world().mutex);
  if (closed) return;
  closed = true;
  stop();
  const std::vector<StreamPtr> all = std::move(streams_);
  streams_.clear();
  lock.unlock();
  for (const StreamPtr& s : all) {
    if (s->thread.joinable()) s->thread.join();
  }
  // Every stream has stopped: completing what was queued lets nothing of this device run on.
  std::vector<Task> tasks;
  for (const StreamPtr& s : all) {
    for (Task& task : s->queue) tasks.push_back(std::move(task));
    s->queue.clear();
  }
  for (Task& task : tasks) {
    if (task.release) task.release();
    task.run = nullptr;
    task.release = nullptr;
  }
  lock.lock();
  for (Task& task : tasks) complete(task.signal, true);
  world().changed.notify_all();
}

}  // namespace accel::sim
