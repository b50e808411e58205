#include "host_stream.h"

#include "host.h"

#include <algorithm>
#include <utility>

namespace accel::host {
namespace {

constexpr size_t kErrorSize = 512;

constexpr const char* kClosed = "the device was closed";
constexpr const char* kAbandoned = "waited for work that was abandoned when its device closed";

thread_local std::string g_last_error;

// How long work on the inline stream waits for what it was told to wait for. The caller named no limit, and a wait that
// never ends would hide the fault; a transfer that takes longer than this has hung.
constexpr std::chrono::seconds kInlineWaitLimit{60};

// How soon a wait on the caller's thread notices that it should end.
constexpr std::chrono::milliseconds kSlice{50};

std::atomic<int32_t (*)()> g_interrupted{nullptr};

bool all_done(const Completions& list) {
  return std::all_of(list.begin(), list.end(), [](const CompletionPtr& c) { return c->done(); });
}

bool any_abandoned(const Completions& list) {
  return std::any_of(list.begin(), list.end(), [](const CompletionPtr& c) { return c->abandoned(); });
}

// What later work must still be told of: what is not done, and what never will be.
bool settled(const CompletionPtr& c) { return c->done() && !c->abandoned(); }

// Runs a task's work; returns the message of a failure, or an empty string.
std::string run_task(const Task& task) {
  if (any_abandoned(task.after)) return std::string(task.op) + ": " + kAbandoned;
  char message[kErrorSize] = "";
  if (!task.run || task.run(message, sizeof(message)) == 0) return {};
  return std::string(task.op) + ": " + (message[0] ? message : "failed without a message");
}

void finish(Task& task) {
  if (task.release) task.release();
  if (task.signal) task.signal->signal();
}

void abandon(Task& task) {
  if (task.release) task.release();
  if (task.signal) task.signal->abandon();
}

// What both kinds of stream remember of a failure. Guarded by the owner's mutex.
struct Failure {
  bool skipping = false;  // later work is skipped until reset
  std::string pending;    // not yet reported

  void set(std::string message) {
    skipping = true;
    pending = std::move(message);
  }
  AccelStatus take() {
    if (pending.empty()) return ACCEL_OK;
    return fail(ACCEL_ASYNC_FAILURE, std::exchange(pending, {}));
  }
};

class WorkerStream final : public AccelStream {
 public:
  WorkerStream() : thread_([this] { work(); }) {}

  ~WorkerStream() override {
    retire();
    thread_.join();
    // What a stop left behind. Not earlier: this completes events, and every stream of the device must have been stopped by
    // then, or one that waits would run on.
    for (Task& task : queue_) abandon(task);
  }

  AccelStatus submit(Task task) override {
    if (!task.signal) task.signal = std::make_shared<Completion>();
    // A completion wakes this stream through a shared flag, not through `this`: it may outlive the stream.
    for (const CompletionPtr& c : task.after) c->on_signal([wake = wake_] { wake->notify(); });
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!stopped_) {
        last_ = task.signal;
        queue_.push_back(std::move(task));
        task = Task{};
      }
    }
    if (task.signal) {  // stopped: the device is closing, nothing runs any more
      abandon(task);
      return fail(ACCEL_DEVICE_LOST, kClosed);
    }
    wake_->notify();
    return ACCEL_OK;
  }

  AccelStatus query() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const AccelStatus status = failure_.take(); status != ACCEL_OK) return status;
    return !last_ || last_->done() ? ACCEL_OK : ACCEL_NOT_READY;
  }

  AccelStatus synchronize(Clock::time_point limit) override {
    CompletionPtr last;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last = last_;
    }
    const bool in_time = !last || last->wait_until(limit);
    std::lock_guard<std::mutex> lock(mutex_);
    if (const AccelStatus status = failure_.take(); status != ACCEL_OK) return status;
    if (in_time) return ACCEL_OK;
    return fail(ACCEL_TIMEOUT,
                "the stream still has " + std::to_string(queue_.size() + (running_ ? 1 : 0)) + " pieces of work");
  }

  // What was queued behind the failure counts on its result, so it stays skipped; only what comes after the reset runs.
  void reset() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.skipping) {
      for (Task& task : queue_) task.run = nullptr;
    }
    failure_ = Failure{};
  }

  void wait(const Completions& completions) override {
    Task task;
    task.op = "wait";
    task.after = completions;
    if (!std::all_of(completions.begin(), completions.end(), settled)) submit(std::move(task));
  }

  Completions mark() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (last_ && !settled(last_)) return {last_};
    auto done = std::make_shared<Completion>();
    done->signal();
    return {done};
  }

  bool is_inline() const override { return false; }

  void stop() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
    }
    wake_->notify();
  }

  void retire() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      retiring_ = true;
    }
    wake_->notify();
  }

  bool retired() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }

  bool ended(Clock::time_point limit, std::string* op) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (ended_changed_.wait_until(lock, limit, [this] { return ended_; })) return true;
    *op = running_op_;
    return false;
  }

 private:
  // A wake-up that survives the stream it was made for.
  struct Wake {
    std::mutex mutex;
    std::condition_variable* changed = nullptr;
    std::mutex* stream_mutex = nullptr;
    void notify() {
      std::lock_guard<std::mutex> lock(mutex);
      if (!changed) return;
      // Taking the stream's lock orders this wake-up after the predicate was read, so that it cannot be lost.
      {
        std::lock_guard<std::mutex> order(*stream_mutex);
      }
      changed->notify_all();
    }
  };

  bool head_ready() const { return !queue_.empty() && all_done(queue_.front().after); }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || head_ready() || (retiring_ && queue_.empty()); });
      if (stopped_) break;
      if (queue_.empty()) break;
      Task task = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
      running_op_ = task.op;
      const bool skip = failure_.skipping;
      lock.unlock();
      std::string error = skip ? std::string() : run_task(task);
      lock.lock();
      running_ = false;
      if (!error.empty()) failure_.set(std::move(error));
      lock.unlock();
      finish(task);
      lock.lock();
    }
    lock.unlock();
    {
      std::lock_guard<std::mutex> wake(wake_->mutex);
      wake_->changed = nullptr;
    }
    lock.lock();
    ended_ = true;
    ended_changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_, ended_changed_;
  std::deque<Task> queue_;
  CompletionPtr last_;
  Failure failure_;
  bool running_ = false;
  const char* running_op_ = "";  // the newest that was taken up
  bool retiring_ = false;
  bool stopped_ = false;
  bool ended_ = false;
  std::shared_ptr<Wake> wake_ = [this] {
    auto wake = std::make_shared<Wake>();
    wake->changed = &changed_;
    wake->stream_mutex = &mutex_;
    return wake;
  }();
  std::thread thread_;  // last: everything it uses is constructed
};

class InlineStream final : public AccelStream {
 public:
  AccelStatus submit(Task task) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (CompletionPtr& c : task.after) pending_.push_back(std::move(c));
    }
    if (const AccelStatus status = task.run ? await_work(task.op) : ACCEL_OK; status != ACCEL_OK) {
      const std::string message = last_error();  // releasing may run anything
      if (task.release) task.release();
      return fail(status, message);
    }
    bool skip;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      skip = failure_.skipping;
    }
    std::string error = skip ? std::string() : run_task(task);
    finish(task);
    if (!error.empty()) {
      std::lock_guard<std::mutex> lock(mutex_);
      failure_.set(std::move(error));
    }
    return ACCEL_OK;
  }

  AccelStatus query() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const AccelStatus status = failure_.take(); status != ACCEL_OK) return status;
    if (any_abandoned(pending_)) return fail(ACCEL_DEVICE_LOST, kAbandoned);
    return all_done(pending_) ? ACCEL_OK : ACCEL_NOT_READY;
  }

  AccelStatus synchronize(Clock::time_point limit) override {
    const bool in_time = await(limit);
    std::lock_guard<std::mutex> lock(mutex_);
    if (const AccelStatus status = failure_.take(); status != ACCEL_OK) return status;
    if (stopped_) return fail(ACCEL_DEVICE_LOST, kClosed);
    if (any_abandoned(pending_)) return fail(ACCEL_DEVICE_LOST, kAbandoned);
    return in_time ? ACCEL_OK : fail(ACCEL_TIMEOUT, "the compute stream waits for an event that is not complete");
  }

  void reset() override {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = Failure{};
    drop([](const CompletionPtr& c) { return c->done(); });
  }

  void wait(const Completions& completions) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const CompletionPtr& c : completions) {
      if (!settled(c)) pending_.push_back(c);
    }
  }

  // Work runs at once, so what is left to complete is exactly what later work would wait for.
  Completions mark() override {
    std::lock_guard<std::mutex> lock(mutex_);
    Completions open;
    for (const CompletionPtr& c : pending_) {
      if (!settled(c)) open.push_back(c);
    }
    if (open.empty()) {
      open.push_back(std::make_shared<Completion>());
      open.back()->signal();
    }
    return open;
  }

  bool is_inline() const override { return true; }

  void stop() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    pending_.clear();
  }

  void retire() override {}
  bool retired() override { return false; }  // belongs to the device
  bool ended(Clock::time_point, std::string*) override { return true; }

 private:
  // The wait of a launch. Its caller named no limit, so it also ends when the stream stops or the embedder says so.
  AccelStatus await_work(const std::string& op) {
    const Clock::time_point limit = Clock::now() + kInlineWaitLimit;
    for (;;) {
      const bool done = await(std::min(limit, Clock::now() + kSlice));
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (stopped_) return fail(ACCEL_DEVICE_LOST, kClosed);
        if (any_abandoned(pending_)) return fail(ACCEL_DEVICE_LOST, kAbandoned);
      }
      if (done) return ACCEL_OK;
      if (Clock::now() >= limit) break;
      const auto interrupted = g_interrupted.load();
      if (interrupted && interrupted() != 0) return fail(ACCEL_TIMEOUT, op + ": the wait for an event was interrupted");
    }
    return fail(ACCEL_TIMEOUT, op + ": an event that the compute stream waits for did not complete in " +
                                   std::to_string(kInlineWaitLimit.count()) + " s");
  }

  template <typename Test>
  void drop(const Test& test) {
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(), test), pending_.end());
  }

  bool await(Clock::time_point limit) {
    Completions open;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (pending_.empty()) return true;
      open = pending_;
    }
    for (const CompletionPtr& c : open) {
      if (!c->wait_until(limit)) return false;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    drop(settled);  // what was abandoned stays until reset: what comes later counts on it too
    return true;
  }

  std::mutex mutex_;
  Completions pending_;
  Failure failure_;
  bool stopped_ = false;
};

}  // namespace

void Completion::complete(bool abandoned) {
  std::vector<std::function<void()>> wakes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    time_ = Clock::now();
    abandoned_ = abandoned;
    done_.store(true, std::memory_order_release);
    wakes.swap(wakes_);
  }
  changed_.notify_all();
  for (const auto& wake : wakes) wake();
}

bool Completion::wait_until(Clock::time_point limit) {
  if (done()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, limit, [this] { return done_.load(std::memory_order_relaxed); });
}

void Completion::on_signal(std::function<void()> wake) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!done_.load(std::memory_order_relaxed)) {
      wakes_.push_back(std::move(wake));
      return;
    }
  }
  wake();
}

Clock::time_point limit_after(int64_t timeout_ns) {
  constexpr int64_t kYear = int64_t{365} * 24 * 3600 * 1000000000;
  return Clock::now() + std::chrono::nanoseconds(std::clamp<int64_t>(timeout_ns, 0, kYear));
}

const char* last_error() { return g_last_error.c_str(); }

AccelStatus fail(AccelStatus status, std::string message) {
  g_last_error = std::move(message);
  return status;
}

void set_interrupted(int32_t (*interrupted)()) { g_interrupted = interrupted; }

std::unique_ptr<AccelStream> make_worker_stream() { return std::make_unique<WorkerStream>(); }
std::unique_ptr<AccelStream> make_inline_stream() { return std::make_unique<InlineStream>(); }

}  // namespace accel::host
