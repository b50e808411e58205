// The table of simulated devices: argument checks in front of machine.cc.

#include "runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accel/build_tag.h"

struct AccelStream {
  accel::sim::StreamPtr stream;
  AccelDevice* device;
};

struct AccelDevice {
  std::shared_ptr<accel::sim::Machine> machine;
  AccelStream compute;
  std::set<AccelStream*> handles;
  std::set<void*> host_memory;
  std::map<std::byte*, size_t> registrations;
};

struct AccelEvent {
  std::shared_ptr<accel::sim::Machine> machine;
  bool timing;
  bool recorded;
  accel::sim::PointPtr newest;
};

struct AccelGate {
  std::shared_ptr<accel::sim::Machine> machine;
  accel::sim::PointPtr point;
};

namespace accel::sim {
namespace {

constexpr size_t kAlignment = 64;
// How long a record of emulated events waits for its stream; the caller named no limit.
constexpr int64_t kRecordLimit = int64_t{60} * 1000000000;
constexpr const char* kClosed = "the device was closed";

AccelStatus device_count(int32_t* count) {
  *count = 1;
  return ACCEL_OK;
}

AccelStatus device_open(int32_t index, AccelDevice** device) {
  std::shared_ptr<Machine> machine = take_next();
  if (index != 0) {
    return fail(ACCEL_INVALID_ARGUMENT, "simulated device " + std::to_string(index) + " does not exist; the limit is 0");
  }
  if (!machine) machine = std::make_shared<Machine>(Options());
  machine->start();
  auto* const made = new AccelDevice{machine, {machine->compute(), nullptr}, {}, {}, {}};
  made->compute.device = made;
  *device = made;
  return ACCEL_OK;
}

void device_close(AccelDevice* device) {
  device->machine->close();
  for (AccelStream* stream : device->handles) delete stream;
  for (void* memory : device->host_memory) std::free(memory);
  delete device;
}

void device_stop(AccelDevice* device) {
  const Lock lock(world().mutex);
  device->machine->stop();
}

int32_t device_ended(AccelDevice* device, int64_t timeout_ns, const char** op) {
  Lock lock(world().mutex);
  std::string running;
  if (device->machine->ended(limit_after(timeout_ns), &running, lock)) return 1;
  thread_local std::string kept;
  kept = std::move(running);
  *op = kept.c_str();
  return 0;
}

AccelStatus sync_fault(Machine& machine) {
  const std::string fault = machine.faults.pass(Point::kSync);
  return fault.empty() ? ACCEL_OK : fail(ACCEL_ASYNC_FAILURE, "synchronize: " + fault);
}

AccelStatus device_synchronize(AccelDevice* device, int64_t timeout_ns) {
  const Time::time_point limit = limit_after(timeout_ns);
  Lock lock(world().mutex);
  Machine& machine = *device->machine;
  if (const AccelStatus status = sync_fault(machine); status != ACCEL_OK) return status;
  // As on the host: what was taken from its stream must be in the message; a timeout comes back at the next call.
  AccelStatus timeout = ACCEL_OK, failure = ACCEL_DEVICE_LOST;
  std::string failures, timeouts;
  for (const StreamPtr& stream : machine.streams()) {
    const AccelStatus status = machine.synchronize(*stream, limit, lock);
    if (status == ACCEL_OK) continue;
    if (status != ACCEL_TIMEOUT && status != ACCEL_DEVICE_LOST) failure = ACCEL_ASYNC_FAILURE;
    std::string& text = status == ACCEL_TIMEOUT ? timeouts : failures;
    if (status == ACCEL_TIMEOUT) timeout = status;
    text += (text.empty() ? "" : "; ") + std::string(last_error());
  }
  if (!failures.empty()) return fail(failure, failures);
  return timeout == ACCEL_OK ? ACCEL_OK : fail(timeout, timeouts);
}

AccelStatus memory_info(AccelDevice* device, size_t* free, size_t* total) {
  const Lock lock(world().mutex);
  const Machine& machine = *device->machine;
  if (!machine.options.memory_info) return fail(ACCEL_UNSUPPORTED, "this device does not tell its free memory");
  *total = machine.memory.limit();
  *free = *total - machine.memory.used();
  return ACCEL_OK;
}

AccelStatus memory_alloc(AccelDevice* device, AccelMemoryKind kind, size_t bytes, void** memory) {
  if (kind == ACCEL_MEMORY_DEVICE) return allocate(*device->machine, bytes, memory);
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *memory = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded ? rounded : kAlignment);
  if (!*memory) return fail(ACCEL_OUT_OF_MEMORY, "the system has no " + std::to_string(bytes) + " bytes");
  const Lock lock(world().mutex);
  device->host_memory.insert(*memory);
  return ACCEL_OK;
}

AccelStatus memory_free(AccelDevice* device, void* memory) {
  {
    const Lock lock(world().mutex);
    if (device->host_memory.erase(memory) != 0) {
      std::free(memory);
      return ACCEL_OK;
    }
  }
  return release(*device->machine, memory);
}

AccelStatus host_register(AccelDevice* device, void* memory, size_t bytes) {
  auto* begin = static_cast<std::byte*>(memory);
  if (!memory || bytes == 0) return fail(ACCEL_INVALID_ARGUMENT, "a host range must have an address and at least 1 byte");
  const Lock lock(world().mutex);
  if (device->machine->memory.contains(memory)) return fail(ACCEL_INVALID_ARGUMENT, "the range is device memory");
  for (const auto& [other, size] : device->registrations) {
    if (begin < other + size && other < begin + bytes) {
      return fail(ACCEL_INVALID_ARGUMENT, "the host range overlaps one that is registered already");
    }
  }
  device->registrations.emplace(begin, bytes);
  return ACCEL_OK;
}

AccelStatus host_unregister(AccelDevice* device, void* memory) {
  const Lock lock(world().mutex);
  if (device->registrations.erase(static_cast<std::byte*>(memory)) == 0) {
    return fail(ACCEL_INVALID_ARGUMENT, "the host range is not registered");
  }
  return ACCEL_OK;
}

AccelStatus work_address(AccelDevice* device, const void* address, size_t bytes, void** usable) {
  const Lock lock(world().mutex);
  const Memory& memory = device->machine->memory;
  *usable = const_cast<void*>(address);
  if (!memory.contains(address)) return ACCEL_OK;
  if (const std::string why = memory.check(address, bytes); !why.empty()) return fail(ACCEL_INVALID_ARGUMENT, why);
  *usable = memory.alias(address);
  return ACCEL_OK;
}

// --- streams and events ----------------------------------------------------------------------------------------------

AccelStatus stream_compute(AccelDevice* device, AccelStream** stream) {
  *stream = &device->compute;
  return ACCEL_OK;
}

AccelStatus stream_create(AccelDevice* device, AccelStream** stream) {
  const Lock lock(world().mutex);
  if (device->machine->closed) return fail(ACCEL_DEVICE_LOST, kClosed);
  *stream = new AccelStream{device->machine->add_stream(), device};
  device->handles.insert(*stream);
  return ACCEL_OK;
}

void stream_destroy(AccelStream* handle) {
  AccelDevice* const device = handle->device;
  if (handle == &device->compute) return;
  Lock lock(world().mutex);
  device->machine->retire(*handle->stream, lock);
  device->handles.erase(handle);
  delete handle;
}

AccelStatus stream_query(AccelStream* handle) {
  Lock lock(world().mutex);
  const StreamPtr stream = handle->stream;
  Machine& machine = *stream->machine;
  ++machine.counters.queries;
  machine.advance(lock);
  if (const AccelStatus status = machine.take_failure(*stream); status != ACCEL_OK) return status;
  if (!stream->idle()) return ACCEL_NOT_READY;
  world().host.join(stream->clock);
  return ACCEL_OK;
}

AccelStatus stream_synchronize(AccelStream* handle, int64_t timeout_ns) {
  Lock lock(world().mutex);
  const StreamPtr stream = handle->stream;
  Machine& machine = *stream->machine;
  if (const AccelStatus status = sync_fault(machine); status != ACCEL_OK) return status;
  return machine.synchronize(*stream, limit_after(timeout_ns), lock);
}

// What was queued behind the failure counts on its result, so it stays skipped.
AccelStatus stream_reset(AccelStream* handle) {
  const Lock lock(world().mutex);
  Stream& stream = *handle->stream;
  if (stream.skipping) {
    for (Task& task : stream.queue) {
      if (!task.always) task.run = nullptr;
    }
  }
  stream.skipping = false;
  stream.failure.clear();
  return ACCEL_OK;
}

// Refuses a stream that takes no work any more; releases what the caller handed over.
AccelStatus refuse(AccelStatus status, const std::string& message, const std::function<void()>& release) {
  if (release) release();  // may run anything, so the message is set after it
  return fail(status, message);
}

AccelStatus hold(Stream& stream, const PointPtr& point, const char* op) {
  Machine& machine = *stream.machine;
  if (stream.stopped) return fail(ACCEL_DEVICE_LOST, kClosed);
  Task task = machine.task(op);
  task.after = point;
  machine.submit(stream, std::move(task));
  return ACCEL_OK;
}

AccelStatus stream_wait_event(AccelStream* handle, AccelEvent* event) {
  Lock lock(world().mutex);
  Stream& stream = *handle->stream;
  Machine& machine = *stream.machine;
  ++machine.counters.waits;
  machine.advance(lock);
  const PointPtr point = event->newest;
  if (!point) return ACCEL_OK;
  if (stream.idle() && point->done && !point->abandoned) {
    stream.clock.join(point->clock);
    return ACCEL_OK;
  }
  return hold(stream, point, "wait");
}

AccelStatus stream_gate(AccelStream* handle, AccelGate** gate) {
  const Lock lock(world().mutex);
  auto point = std::make_shared<PointState>();
  if (const AccelStatus status = hold(*handle->stream, point, "gate"); status != ACCEL_OK) return status;
  ++handle->stream->machine->gates;
  *gate = new AccelGate{handle->device->machine, std::move(point)};
  return ACCEL_OK;
}

void open_gate(AccelGate* gate) {
  if (gate->point->done) return;
  gate->point->done = true;
  gate->point->time = Time::now();
  gate->point->clock = world().host;
  world().changed.notify_all();
}

void gate_open(AccelGate* gate) {
  const Lock lock(world().mutex);
  open_gate(gate);
}

void gate_destroy(AccelGate* gate) {
  {
    const Lock lock(world().mutex);
    open_gate(gate);
    --gate->machine->gates;
  }
  delete gate;
}

AccelStatus event_create(AccelDevice* device, int32_t timing, AccelEvent** event) {
  const Lock lock(world().mutex);
  ++device->machine->events;
  *event = new AccelEvent{device->machine, timing != 0, false, nullptr};
  return ACCEL_OK;
}

void event_destroy(AccelEvent* event) {
  {
    const Lock lock(world().mutex);
    --event->machine->events;
  }
  delete event;  // maybe the last that holds its device
}

AccelStatus event_record(AccelEvent* event, AccelStream* handle) {
  Lock lock(world().mutex);
  const StreamPtr stream = handle->stream;
  Machine& machine = *stream->machine;
  if (stream->stopped) return fail(ACCEL_DEVICE_LOST, kClosed);
  Task task = machine.task("record");
  task.fault = machine.faults.pass(Point::kEvent);
  auto point = std::make_shared<PointState>();
  event->newest = point;
  event->recorded = true;
  if (stream->idle() && task.fault.empty()) {
    stream->clock.join(task.submitted);
    *point = {true, false, Time::now(), stream->clock};
    return ACCEL_OK;
  }
  task.signal = point;
  machine.submit(*stream, std::move(task));
  if (!machine.options.emulated_events) return ACCEL_OK;
  const bool reached = machine.await([&] { return point->done || stream->stopped; }, limit_after(kRecordLimit), lock);
  if (!reached)
    return fail(ACCEL_TIMEOUT, "events are emulated here, and " + stream->name() + " did not reach the record in 60 s");
  return point->done ? ACCEL_OK : fail(ACCEL_DEVICE_LOST, kClosed);
}

AccelStatus event_query(AccelEvent* event) {
  Lock lock(world().mutex);
  ++event->machine->counters.queries;
  event->machine->advance(lock);
  const PointPtr& point = event->newest;
  if (!point) return ACCEL_OK;
  if (!point->done) return ACCEL_NOT_READY;
  world().host.join(point->clock);
  return ACCEL_OK;
}

AccelStatus event_synchronize(AccelEvent* event, int64_t timeout_ns) {
  Lock lock(world().mutex);
  if (const AccelStatus status = sync_fault(*event->machine); status != ACCEL_OK) return status;
  const PointPtr point = event->newest;
  if (!point) return ACCEL_OK;
  const std::shared_ptr<Machine> machine = event->machine;
  if (!machine->await([&] { return point->done; }, limit_after(timeout_ns), lock)) {
    return fail(ACCEL_TIMEOUT, "the event is not complete");
  }
  world().host.join(point->clock);
  if (point->abandoned) return fail(ACCEL_DEVICE_LOST, "the event stands for work that was abandoned when its device closed");
  return ACCEL_OK;
}

AccelStatus event_elapsed(AccelEvent* start, AccelEvent* end, double* milliseconds) {
  const Lock lock(world().mutex);
  if (!start->timing || !end->timing) return fail(ACCEL_INVALID_ARGUMENT, "both events must be created with timing");
  const bool complete = start->recorded && end->recorded && start->newest->done && end->newest->done;
  if (!complete) return fail(ACCEL_INVALID_ARGUMENT, "both events must be recorded and complete");
  *milliseconds = std::chrono::duration<double, std::milli>(end->newest->time - start->newest->time).count();
  return ACCEL_OK;
}

// --- work ------------------------------------------------------------------------------------------------------------

std::string check_range(const Machine& machine, const void* address, size_t bytes) {
  return machine.memory.contains(address) ? machine.memory.check(address, bytes) : std::string();
}

// What work dereferences; host addresses are what they are.
template <typename T>
T* usable(const Machine& machine, T* address) {
  return machine.memory.contains(address) ? static_cast<T*>(machine.memory.alias(address)) : address;
}

bool overlaps(const AccelCopy& run) {
  const auto* dst = static_cast<const std::byte*>(run.dst);
  const auto* src = static_cast<const std::byte*>(run.src);
  return dst < src + run.bytes && src < dst + run.bytes;
}

AccelStatus copy(AccelStream* handle, const AccelCopy* runs, size_t count) {
  Stream& stream = *handle->stream;
  Machine& machine = *stream.machine;
  mark_site(machine);
  const Lock lock(world().mutex);
  if (stream.stopped) return fail(ACCEL_DEVICE_LOST, kClosed);
  std::vector<AccelCopy> usable_runs;
  std::vector<Range> accesses;
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const AccelCopy& run = runs[i];
    const std::string who = "run " + std::to_string(i);
    if (run.bytes == 0) continue;
    if (!run.dst || !run.src) return fail(ACCEL_INVALID_ARGUMENT, who + " has a null address");
    if (overlaps(run)) {
      return fail(ACCEL_INVALID_ARGUMENT, who + " of " + std::to_string(run.bytes) + " bytes overlaps itself");
    }
    for (const void* address : {static_cast<const void*>(run.dst), run.src}) {
      if (const std::string why = check_range(machine, address, run.bytes); !why.empty()) {
        return fail(ACCEL_INVALID_ARGUMENT, who + " " + why);
      }
    }
    usable_runs.push_back({usable(machine, run.dst), usable(machine, run.src), run.bytes});
    accesses.push_back(range_of(run.src, run.bytes, ACCEL_READ));
    accesses.push_back(range_of(run.dst, run.bytes, ACCEL_WRITE));
    total += run.bytes;
  }
  if (usable_runs.empty()) return ACCEL_OK;
  Task task = machine.task("copy");
  task.fault = machine.faults.pass(Point::kCopy);
  machine.counters.bytes_copied += total;
  task.accesses = std::move(accesses);
  task.run = [list = std::move(usable_runs)](char*, size_t) {
    for (const AccelCopy& run : list) std::memcpy(run.dst, run.src, run.bytes);
    return 0;
  };
  machine.submit(stream, std::move(task));
  return ACCEL_OK;
}

AccelStatus fill(AccelStream* handle, void* dst, uint8_t byte, size_t bytes) {
  Stream& stream = *handle->stream;
  Machine& machine = *stream.machine;
  if (bytes == 0) return ACCEL_OK;
  mark_site(machine);
  const Lock lock(world().mutex);
  if (stream.stopped) return fail(ACCEL_DEVICE_LOST, kClosed);
  if (!dst) return fail(ACCEL_INVALID_ARGUMENT, "the destination has a null address");
  if (const std::string why = check_range(machine, dst, bytes); !why.empty()) {
    return fail(ACCEL_INVALID_ARGUMENT, "the fill " + why);
  }
  Task task = machine.task("fill");
  ++machine.counters.fills;
  task.accesses = {range_of(dst, bytes, ACCEL_WRITE)};
  task.run = [to = usable(machine, dst), byte, bytes](char*, size_t) {
    std::memset(to, byte, bytes);
    return 0;
  };
  machine.submit(stream, std::move(task));
  return ACCEL_OK;
}

AccelStatus launch(AccelStream* handle, const AccelLaunch* launch) {
  Stream& stream = *handle->stream;
  Machine& machine = *stream.machine;
  if (launch->struct_size < sizeof(AccelLaunch) || !launch->work) {
    return fail(ACCEL_INVALID_ARGUMENT, "the launch has no work or is from another version");
  }
  std::function<void()> release;
  if (launch->release) release = [end = launch->release, arg = launch->arg] { end(arg); };
  mark_site(machine);
  Lock lock(world().mutex);
  std::string why = stream.stopped ? kClosed : "";
  const AccelStatus status = stream.stopped ? ACCEL_DEVICE_LOST : ACCEL_INVALID_ARGUMENT;
  std::vector<Range> accesses;
  for (size_t i = 0; i < launch->num_accesses && why.empty(); ++i) {
    const AccelAccess& a = launch->accesses[i];
    for (size_t j = 0; j < a.count && why.empty(); ++j) {
      const int64_t step = a.index ? a.index[j] : static_cast<int64_t>(j);
      const std::byte* const begin = static_cast<std::byte*>(a.base) + step * a.stride;
      why = check_range(machine, begin, a.bytes);
      accesses.push_back(range_of(begin, a.bytes, a.mode));
    }
  }
  if (!why.empty()) {
    lock.unlock();
    return refuse(status, why, release);
  }
  Task task = machine.task(launch->op);
  task.fault = machine.faults.pass(Point::kLaunch);
  task.accesses = std::move(accesses);
  task.run = [work = launch->work, arg = launch->arg](char* error, size_t size) { return work(arg, error, size); };
  task.release = std::move(release);
  machine.submit(stream, std::move(task));
  return ACCEL_OK;
}

int32_t stream_is_inline(AccelStream*) { return 0; }

const AccelRuntime kRuntime = {
    sizeof(AccelRuntime),
    ACCEL_RUNTIME_ABI_MAJOR,
    ACCEL_RUNTIME_ABI_MINOR,
    "sim",
    build_tag(),
    1,
    last_error,
    device_count,
    device_open,
    device_close,
    device_synchronize,
    memory_info,
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
    work_address,
    device_stop,
    device_ended,
};

}  // namespace

const AccelRuntime* runtime() { return &kRuntime; }

}  // namespace accel::sim
