// The host runtime table: argument checks in front of host_stream.cc.

#include "host.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "accel/build_tag.h"
#include "host_memory.h"
#include "host_stream.h"

struct AccelDevice {
  std::mutex mutex;
  std::unique_ptr<AccelStream> compute = accel::host::make_inline_stream();
  std::map<AccelStream*, std::shared_ptr<AccelStream>> workers;
  // Destroyed by the caller, but still finishing what was queued.
  std::vector<std::shared_ptr<AccelStream>> retiring;
  std::set<void*> allocations;
  std::map<std::byte*, size_t> registrations;
};

namespace accel::host {
namespace {

constexpr size_t kAlignment = 64;

std::vector<std::shared_ptr<AccelStream>> worker_list(AccelDevice* device) {
  std::lock_guard<std::mutex> lock(device->mutex);
  std::vector<std::shared_ptr<AccelStream>> list;
  for (auto& entry : device->workers) list.push_back(entry.second);
  list.insert(list.end(), device->retiring.begin(), device->retiring.end());
  return list;
}

AccelStatus device_count(int32_t* count) {
  *count = 1;
  return ACCEL_OK;
}

AccelStatus device_open(int32_t index, AccelDevice** device) {
  if (index != 0)
    return fail(ACCEL_INVALID_ARGUMENT, "host device " + std::to_string(index) + " does not exist; the limit is 0");
  *device = new AccelDevice;
  return ACCEL_OK;
}

void device_close(AccelDevice* device) {
  begin_close(device);
  device->workers.clear();  // joins
  device->retiring.clear();
  for (void* memory : device->allocations) std::free(memory);
  delete device;
}

AccelStatus device_synchronize(AccelDevice* device, int64_t timeout_ns) {
  const Clock::time_point limit = limit_after(timeout_ns);
  // Every stream is waited for even when an earlier one failed. A failure that was taken from its stream must be in the
  // message, because it is not reported again; a timeout comes back at the next call.
  AccelStatus timeout = ACCEL_OK, failure = ACCEL_DEVICE_LOST;  // lost, unless some work failed by itself
  std::string failures, timeouts;
  const auto note = [&](AccelStatus status) {
    if (status == ACCEL_OK) return;
    if (status != ACCEL_TIMEOUT && status != ACCEL_DEVICE_LOST) failure = ACCEL_ASYNC_FAILURE;
    std::string& text = status == ACCEL_TIMEOUT ? timeouts : failures;
    if (status == ACCEL_TIMEOUT) timeout = status;
    text += (text.empty() ? "" : "; ") + std::string(last_error());
  };
  for (auto& worker : worker_list(device)) note(worker->synchronize(limit));
  note(device->compute->synchronize(limit));
  if (!failures.empty()) return fail(failure, failures);
  return timeout == ACCEL_OK ? ACCEL_OK : fail(timeout, timeouts);
}

AccelStatus get_memory_info(AccelDevice*, size_t* free, size_t* total) {
  MemoryInfo info;
  if (!memory_info(&info)) return fail(ACCEL_UNSUPPORTED, "/proc/meminfo cannot be read, so free memory is not known");
  *free = info.free;
  *total = info.total;
  return ACCEL_OK;
}

AccelStatus memory_alloc(AccelDevice* device, AccelMemoryKind, size_t bytes, void** memory) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *memory = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded ? rounded : kAlignment);
  if (!*memory) return fail(ACCEL_OUT_OF_MEMORY, "the system has no " + std::to_string(bytes) + " bytes");
  std::lock_guard<std::mutex> lock(device->mutex);
  device->allocations.insert(*memory);
  return ACCEL_OK;
}

AccelStatus memory_free(AccelDevice* device, void* memory) {
  {
    std::lock_guard<std::mutex> lock(device->mutex);
    if (device->allocations.erase(memory) == 0) {
      return fail(ACCEL_INVALID_ARGUMENT, "freed memory that is not an allocation of this device, or freed it twice");
    }
  }
  std::free(memory);
  return ACCEL_OK;
}

// Host memory needs no preparation here; the ranges are kept so that a wrong call fails as it would on a device.
AccelStatus host_register(AccelDevice* device, void* memory, size_t bytes) {
  auto* begin = static_cast<std::byte*>(memory);
  if (!memory || bytes == 0) return fail(ACCEL_INVALID_ARGUMENT, "a host range must have an address and at least 1 byte");
  std::lock_guard<std::mutex> lock(device->mutex);
  for (const auto& [other, size] : device->registrations) {
    if (begin < other + size && other < begin + bytes) {
      return fail(ACCEL_INVALID_ARGUMENT, "the host range overlaps one that is registered already");
    }
  }
  device->registrations.emplace(begin, bytes);
  return ACCEL_OK;
}

AccelStatus host_unregister(AccelDevice* device, void* memory) {
  std::lock_guard<std::mutex> lock(device->mutex);
  if (device->registrations.erase(static_cast<std::byte*>(memory)) == 0) {
    return fail(ACCEL_INVALID_ARGUMENT, "the host range is not registered");
  }
  return ACCEL_OK;
}

AccelStatus stream_compute(AccelDevice* device, AccelStream** stream) {
  *stream = device->compute.get();
  return ACCEL_OK;
}

// Threads of destroyed streams that have ended; the caller drops them (and so joins them) outside the device's lock.
std::vector<std::shared_ptr<AccelStream>> reap(AccelDevice* device) {
  std::vector<std::shared_ptr<AccelStream>> ended;
  auto& retiring = device->retiring;
  for (auto it = retiring.begin(); it != retiring.end();) {
    if (!(*it)->retired()) {
      ++it;
      continue;
    }
    ended.push_back(std::move(*it));
    it = retiring.erase(it);
  }
  return ended;
}

AccelStatus stream_create(AccelDevice* device, AccelStream** stream) {
  std::shared_ptr<AccelStream> worker = make_worker_stream();
  worker->device = device;
  *stream = worker.get();
  std::vector<std::shared_ptr<AccelStream>> ended;  // declared before the lock: dropped after it
  std::lock_guard<std::mutex> lock(device->mutex);
  ended = reap(device);
  device->workers.emplace(*stream, std::move(worker));
  return ACCEL_OK;
}

void stream_destroy(AccelStream* stream) {
  AccelDevice* device = stream->device;
  if (!device) return;  // the compute stream
  std::lock_guard<std::mutex> lock(device->mutex);
  const auto it = device->workers.find(stream);
  if (it == device->workers.end()) return;
  it->second->retire();
  device->retiring.push_back(std::move(it->second));
  device->workers.erase(it);
}

AccelStatus stream_query(AccelStream* stream) { return stream->query(); }

AccelStatus stream_synchronize(AccelStream* stream, int64_t timeout_ns) { return stream->synchronize(limit_after(timeout_ns)); }

AccelStatus stream_reset(AccelStream* stream) {
  stream->reset();
  return ACCEL_OK;
}

AccelStatus stream_wait_event(AccelStream* stream, AccelEvent* event) {
  Completions captured;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    captured = event->newest;
  }
  stream->wait(captured);
  return ACCEL_OK;
}

AccelStatus stream_gate(AccelStream* stream, AccelGate** gate) {
  auto completion = std::make_shared<Completion>();
  stream->wait({completion});
  *gate = new AccelGate{std::move(completion)};
  return ACCEL_OK;
}

void gate_open(AccelGate* gate) { gate->completion->signal(); }

void gate_destroy(AccelGate* gate) {
  gate->completion->signal();
  delete gate;
}

AccelStatus event_create(AccelDevice*, int32_t timing, AccelEvent** event) {
  *event = new AccelEvent(timing != 0);
  return ACCEL_OK;
}

void event_destroy(AccelEvent* event) { delete event; }

AccelStatus event_record(AccelEvent* event, AccelStream* stream) {
  Completions marked = stream->mark();
  if (event->timing && !stream->is_inline()) {
    // A mark may stand for work that ended long ago; a timed record needs a point of its own.
    Task task;
    task.op = "record";
    task.signal = std::make_shared<Completion>();
    marked = {task.signal};
    if (const AccelStatus status = stream->submit(std::move(task)); status != ACCEL_OK) return status;
  }
  std::lock_guard<std::mutex> lock(event->mutex);
  event->recorded = true;
  event->newest = std::move(marked);
  return ACCEL_OK;
}

AccelStatus event_query(AccelEvent* event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  for (const CompletionPtr& c : event->newest) {
    if (!c->done()) return ACCEL_NOT_READY;
  }
  return ACCEL_OK;
}

AccelStatus event_synchronize(AccelEvent* event, int64_t timeout_ns) {
  const Clock::time_point limit = limit_after(timeout_ns);
  Completions captured;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    captured = event->newest;
  }
  for (const CompletionPtr& c : captured) {
    if (!c->wait_until(limit)) return fail(ACCEL_TIMEOUT, "the event is not complete");
    if (c->abandoned()) return fail(ACCEL_DEVICE_LOST, "the event stands for work that was abandoned when its device closed");
  }
  return ACCEL_OK;
}

// When the newest record completed; false when there is none, or it is not complete.
bool completion_time(AccelEvent* event, Clock::time_point* time) {
  std::lock_guard<std::mutex> lock(event->mutex);
  if (!event->recorded) return false;
  *time = Clock::time_point::min();
  for (const CompletionPtr& c : event->newest) {
    if (!c->done()) return false;
    *time = std::max(*time, c->time());
  }
  return true;
}

AccelStatus event_elapsed(AccelEvent* start, AccelEvent* end, double* milliseconds) {
  if (!start->timing || !end->timing) return fail(ACCEL_INVALID_ARGUMENT, "both events must be created with timing");
  Clock::time_point from, to;
  if (!completion_time(start, &from) || !completion_time(end, &to)) {
    return fail(ACCEL_INVALID_ARGUMENT, "both events must be recorded and complete");
  }
  *milliseconds = std::chrono::duration<double, std::milli>(to - from).count();
  return ACCEL_OK;
}

bool overlaps(const AccelCopy& run) {
  const auto* dst = static_cast<const std::byte*>(run.dst);
  const auto* src = static_cast<const std::byte*>(run.src);
  return dst < src + run.bytes && src < dst + run.bytes;
}

// Two runs that lie next to each other on both sides, as one. Not when the whole would overlap itself (a shift by less than
// its length), which is right only piece by piece.
bool merge(AccelCopy& last, const AccelCopy& run) {
  if (static_cast<std::byte*>(last.dst) + last.bytes != run.dst ||
      static_cast<const std::byte*>(last.src) + last.bytes != run.src)
    return false;
  const AccelCopy whole{last.dst, last.src, last.bytes + run.bytes};
  if (overlaps(whole)) return false;
  last = whole;
  return true;
}

AccelStatus copy(AccelStream* stream, const AccelCopy* runs, size_t count) {
  std::vector<AccelCopy> merged;
  for (size_t i = 0; i < count; ++i) {
    const AccelCopy& run = runs[i];
    if (run.bytes == 0) continue;
    if (!run.dst || !run.src) return fail(ACCEL_INVALID_ARGUMENT, "run " + std::to_string(i) + " has a null address");
    if (overlaps(run)) {
      return fail(ACCEL_INVALID_ARGUMENT,
                  "run " + std::to_string(i) + " of " + std::to_string(run.bytes) + " bytes overlaps itself");
    }
    if (merged.empty() || !merge(merged.back(), run)) merged.push_back(run);
  }
  if (merged.empty()) return ACCEL_OK;
  Task task;
  task.op = "copy";
  task.run = [merged = std::move(merged)](char*, size_t) {
    for (const AccelCopy& run : merged) std::memcpy(run.dst, run.src, run.bytes);
    return 0;
  };
  return stream->submit(std::move(task));
}

AccelStatus fill(AccelStream* stream, void* dst, uint8_t byte, size_t bytes) {
  if (bytes == 0) return ACCEL_OK;
  if (!dst) return fail(ACCEL_INVALID_ARGUMENT, "the destination has a null address");
  Task task;
  task.op = "fill";
  task.run = [=](char*, size_t) {
    std::memset(dst, byte, bytes);
    return 0;
  };
  return stream->submit(std::move(task));
}

AccelStatus launch(AccelStream* stream, const AccelLaunch* launch) {
  if (launch->struct_size < sizeof(AccelLaunch) || !launch->work) {
    return fail(ACCEL_INVALID_ARGUMENT, "the launch has no work or is from another version");
  }
  Task task;
  task.op = launch->op;
  task.run = [work = launch->work, arg = launch->arg](char* error, size_t size) { return work(arg, error, size); };
  if (launch->release) task.release = [release = launch->release, arg = launch->arg] { release(arg); };
  return stream->submit(std::move(task));
}

int32_t stream_is_inline(AccelStream* stream) { return stream->is_inline() ? 1 : 0; }

void device_stop(AccelDevice* device) { begin_close(device); }

int32_t device_ended(AccelDevice* device, int64_t timeout_ns, const char** op) {
  thread_local std::string running;
  if (ended(device, limit_after(timeout_ns), &running)) return 1;
  *op = running.c_str();
  return 0;
}

const AccelRuntime kRuntime = {
    sizeof(AccelRuntime),
    ACCEL_RUNTIME_ABI_MAJOR,
    ACCEL_RUNTIME_ABI_MINOR,
    "host",
    build_tag(),
    0,  // work runs here and now: accesses cannot be out of order
    last_error,
    device_count,
    device_open,
    device_close,
    device_synchronize,
    get_memory_info,
    memory_alloc,
    memory_free,
    host_register,
    host_unregister,
    stream_compute,
    stream_create,
    stream_destroy,
    stream_query,
    stream_synchronize,
    stream_reset,
    stream_wait_event,
    stream_gate,
    gate_open,
    gate_destroy,
    event_create,
    event_destroy,
    event_record,
    event_query,
    event_synchronize,
    event_elapsed,
    copy,
    fill,
    launch,
    stream_is_inline,
    nullptr,  // work_address: every address is its own
    device_stop,
    device_ended,
};

}  // namespace

const AccelRuntime* runtime() { return &kRuntime; }

void begin_close(AccelDevice* device) {
  for (auto& worker : worker_list(device)) worker->stop();
  device->compute->stop();
}

bool ended(AccelDevice* device, Clock::time_point limit, std::string* op) {
  for (auto& worker : worker_list(device)) {
    if (!worker->ended(limit, op)) return false;
  }
  return true;
}

}  // namespace accel::host
